"""Floating-point operations and memory of a model, counted on the meta device: no weights, no computing."""

import resource
import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from robustvit.models.cost import counted_operations
from robustvit.models.modes import attacking, set_training
from robustvit.planning.passes import Passes
from robustvit.training.optimizer import Optimizer
from robustvit.training.recipe import Phase

TEMPORARIES = 1.2
"""What a pass holds at its peak, in units of what it keeps for the gradient."""
CONTEXT = 0.6e9
"""Bytes that the libraries take on a GPU for their kernels."""
FIRST_PASSES = 0.2e9
"""Bytes that libraries take on a CPU in the first passes, in addition to what the process holds by then."""
PIXELS = 6
"""Tensors of the size of a batch that a search holds: images, perturbed ones, gradient, steps."""


@dataclass(frozen=True)
class Work:
    """Of one image: floating-point operations of passes, and the bytes that a pass keeps until its gradient."""

    forward: int
    input_gradient: int
    gradient: int
    kept_in_search: int
    kept_in_loss: int


def count_work(model: nn.Module, img_size: int) -> Work:
    """A model of the meta device whose trainable parameters need gradients."""
    set_training(model)
    with attacking(model, "eval"):
        forward, input_gradient = _operations(model, img_size, of_pixels=True)
        kept_in_search = _kept(model, img_size, of_pixels=True)
    _, gradient = _operations(model, img_size, of_pixels=False)
    return Work(forward, input_gradient, gradient, kept_in_search, _kept(model, img_size, of_pixels=False))


def _images(count: int, img_size: int, of_pixels: bool) -> Tensor:
    return torch.zeros(count, 3, img_size, img_size, device="meta", requires_grad=of_pixels)


def _operations(model: nn.Module, img_size: int, of_pixels: bool) -> tuple[int, int]:
    """Forward and backward, for one of two images: batch norms in train mode need more than one."""
    with counted_operations() as counter:
        logits = model(_images(2, img_size, of_pixels))
        forward = counter.get_total_flops()
        logits.sum().backward()
        both = counter.get_total_flops()
    model.zero_grad(set_to_none=True)
    return forward // 2, (both - forward) // 2


def _kept(model: nn.Module, img_size: int, of_pixels: bool) -> int:
    """Bytes of activations for one image: those of three less those of two."""
    two, three = (_saved_bytes(model, _images(count, img_size, of_pixels)) for count in (2, 3))
    return three - two


def _saved_bytes(model: nn.Module, x: Tensor) -> int:
    own = {_storage(tensor) for tensor in (*model.parameters(), *model.buffers())}
    saved: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        if _storage(tensor) not in own:
            saved[_storage(tensor)] = tensor  # kept alive, so that no other storage takes its address
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, _identity):
        logits = model(x)
    del logits
    return sum(tensor.untyped_storage().nbytes() for tensor in saved.values())


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


_identity: Callable[[Tensor], Tensor] = lambda tensor: tensor  # noqa: E731


def tensor_bytes(tensors: object) -> int:
    """Of all tensors in a nested value."""
    if isinstance(tensors, Tensor):
        return tensors.numel() * tensors.element_size()
    if isinstance(tensors, dict):
        return sum(map(tensor_bytes, tensors.values()))
    return sum(map(tensor_bytes, tensors)) if isinstance(tensors, list | tuple) else 0


def optimizer_bytes(model: nn.Module, settings: Optimizer) -> int:
    """What an optimizer keeps after a step on the meta device."""
    optimizer = settings.build(model)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.empty_like(parameter)
    optimizer.step()
    model.zero_grad(set_to_none=True)
    return tensor_bytes([dict(state) for state in optimizer.state.values()])


def peak_bytes(
    model: nn.Module, phase: Phase, passes: Passes, work: Work, rows: int, img_size: int, device: str
) -> dict[str, float]:
    """By part; `rows` images on this device, in the parts of the phase."""
    weights = tensor_bytes([*model.parameters(), *model.buffers()])
    trained = tensor_bytes([parameter for parameter in model.parameters() if parameter.requires_grad])
    images = -(-rows // phase.parts)
    kept = max(passes.held_in_search * work.kept_in_search, passes.held_in_loss * work.kept_in_loss)
    copies = 1 if phase.around_step is None else 2  # weights before they were moved, and their gradient
    return {
        "weights": float(weights * copies),
        "gradients": float(trained),
        "optimizer": float(optimizer_bytes(model, phase.optimizer)),
        "average of the weights": float(weights if phase.ema is not None else 0),
        "activations": TEMPORARIES * kept * images,
        "images": float(PIXELS * rows * 3 * img_size**2 * 4),
        "libraries": _held_bytes() + FIRST_PASSES if device == "cpu" else CONTEXT,
    }


def _held_bytes() -> float:
    """What this process holds: code, and the images that a training would have opened, too."""
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return float(largest if sys.platform == "darwin" else 1024 * largest)

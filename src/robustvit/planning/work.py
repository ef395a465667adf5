"""Operations of a model's passes and what they keep for a gradient, counted on tensors that have no memory."""

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from robustvit.models import Normalized
from robustvit.models.cost import counted_operations
from robustvit.models.modes import attacking, set_training
from robustvit.models.precision import Precision, compute_in


@dataclass(frozen=True)
class Work:
    """Of one image: floating-point operations of passes, and the bytes that a pass keeps until its gradient."""

    forward: int
    input_gradient: int
    gradient: int
    kept_in_search: int
    kept_in_loss: int
    kept_once: int
    """Bytes of a pass that don't depend on its images, such as weights that are cast to bfloat16."""


def count_work(model: Normalized, img_size: int, precision: Precision = "float32") -> Work:
    """A model of the meta device whose trainable parameters need gradients."""
    set_training(model)
    with attacking(model, "eval"):
        forward, input_gradient = _operations(model, img_size)
        kept_in_search, _ = _kept(model, img_size, precision, of_pixels=True)
    _, gradient = _operations(model, img_size, of_pixels=False)
    kept_in_loss, kept_once = _kept(model, img_size, precision, of_pixels=False)
    return Work(forward, input_gradient, gradient, kept_in_search, kept_in_loss, kept_once)


def _operations(model: nn.Module, img_size: int, of_pixels: bool = True) -> tuple[int, int]:
    """Forward and backward, for one of two images: batch norms in train mode need more than one."""
    with counted_operations() as counter:
        logits = model(torch.zeros(2, 3, img_size, img_size, device="meta", requires_grad=of_pixels))
        forward = counter.get_total_flops()
        logits.sum().backward()
        both = counter.get_total_flops()
    model.zero_grad(set_to_none=True)
    return forward // 2, (both - forward) // 2


def _kept(model: Normalized, img_size: int, precision: Precision, of_pixels: bool) -> tuple[int, int]:
    """Bytes of activations for one image, those of three less those of two; and bytes that are kept for none.

    Tensors without memory that pass for a CPU's, where attention has its fused kernels and autocast its types; the meta
    device has neither.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode  # takes a second to import

    made = copy.deepcopy(model)
    with FakeTensorMode(allow_non_fake_inputs=True):
        made.to_empty(device="cpu")
        compute_in(made, precision)
        images = torch.zeros(3, 3, img_size, img_size, device="cpu")
        two, three = (_saved_bytes(made, images[:count].clone().requires_grad_(of_pixels)) for count in (2, 3))
    return three - two, 3 * two - 2 * three


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

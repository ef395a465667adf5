"""Memory of a training on each of its devices, at the moments that may be its peak."""

import resource
import sys

import torch
from torch import Tensor, nn

from robustvit.models.layout import feature_blocks
from robustvit.planning.passes import Passes
from robustvit.planning.work import Work
from robustvit.training.optimizer import Optimizer
from robustvit.training.parts import Parts
from robustvit.training.recipe import Phase

TEMPORARIES = 1.2
"""What a pass holds at its peak, in units of what it keeps for the gradient."""
CONTEXT = 0.6e9
"""Bytes that the libraries take on a GPU for their kernels."""
FIRST_PASSES = 0.2e9
"""Bytes that libraries take on a CPU in the first passes, in addition to what the process holds by then."""
PIXELS = 6
"""Tensors of the size of a batch that a search holds: images, perturbed ones, gradient, steps."""


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


def moments_bytes(
    model: nn.Module,
    phase: Phase,
    passes: Passes,
    work: Work,
    parts: Parts,
    img_size: int,
    device: str,
    is_sharded: bool = False,
) -> tuple[dict[str, float], ...]:
    """By kind in a search, in a loss and, where the network is sharded, at a save; on a device that computes its
    `parts` of a batch one after the other."""
    weights = tensor_bytes([*model.parameters(), *model.buffers()])
    trained = tensor_bytes([parameter for parameter in model.parameters() if parameter.requires_grad])
    copies = 1 if phase.around_step is None else 2  # weights before they were moved, and their gradient
    spread = {
        "weights": weights * copies,
        "gradients": trained,
        "optimizer": optimizer_bytes(model, phase.optimizer),
        "average of the weights": weights if phase.ema is not None else 0,
    }
    fixed = {
        **{name: size / (parts.world.size if is_sharded else 1) for name, size in spread.items()},
        "images": float(PIXELS * len(parts.own_rows) * 3 * img_size**2 * 4),
        "libraries": _held_bytes() + FIRST_PASSES if device == "cpu" else CONTEXT,
    }
    # freezing doesn't reach parameters that are gathered
    kept_in_search = work.kept_in_loss if is_sharded else work.kept_in_search
    search = passes.held_in_search, kept_in_search, weights if passes.held_in_search else 0
    loss = passes.held_in_loss, work.kept_in_loss, _gathered_in_loss(model) if is_sharded else 0
    moments = [
        {
            "activations": TEMPORARIES * held * kept * parts.size,
            "cast weights": held * work.kept_once,
            "gathered weights": float(gathered if is_sharded else 0),
        }
        for held, kept, gathered in (search, loss)
    ]
    if is_sharded:  # a whole network for validation and for a file of weights, and what it is filled with
        moments.append({"activations": 0.0, "cast weights": 0.0, "gathered weights": 2.0 * weights})
    return tuple(fixed | moment for moment in moments)


def _gathered_in_loss(model: nn.Module) -> int:
    """The block that computes and the next one, with gradients of two, and what belongs to no block."""
    blocks = [tensor_bytes(list(model.get_submodule(name).parameters())) for name in feature_blocks(model)]
    return tensor_bytes(list(model.parameters())) - sum(blocks) + 4 * max(blocks)


def _held_bytes() -> float:
    """What this process holds: code, and the images that a training would have opened, too."""
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return float(largest if sys.platform == "darwin" else 1024 * largest)

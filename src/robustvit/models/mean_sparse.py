"""MeanSparse (Amini et al. 2024): inputs of activations close to their channel's mean become the mean, after training.

Inside the band the output is constant and its gradient zero, which may hide gradients from an attack instead of
removing what it uses. `straight_through` passes the gradient on as if nothing had been changed, at the same output:
a model is as robust as the weaker of the two says.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.modules import activation as torch_activations

from robustvit.core.errors import UserError
from robustvit.models.modes import eval_mode

_TIMM = "timm.layers.activations"
_NOT_PLAIN = (nn.MultiheadAttention, nn.Softmax, nn.LogSoftmax, nn.Softmin, nn.Softmax2d)


class MeanSparse(nn.Module):
    """An activation whose inputs within alpha standard deviations of their channel's mean are that mean."""

    mean: Tensor
    std: Tensor

    def __init__(
        self, activation: nn.Module, mean: Tensor, std: Tensor, axis: int, alpha: float, straight_through: bool
    ) -> None:
        super().__init__()
        self.activation = activation
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)
        self.axis, self.alpha, self.straight_through = axis, alpha, straight_through

    def forward(self, x: Tensor) -> Tensor:
        shape = [1] * x.ndim
        shape[self.axis] = -1
        mean, std = self.mean.view(shape), self.std.view(shape)
        sparse = torch.where((x - mean).abs() <= self.alpha * std, mean, x)
        if self.straight_through:
            sparse = x + (sparse - x).detach()
        out: Tensor = self.activation(sparse)
        return out


def mean_sparse(
    model: nn.Module, images: Tensor, alpha: float = 0.2, *, straight_through: bool = False, batch_size: int = 128
) -> nn.Module:
    """A copy of the model with MeanSparse before its activations, by their statistics on these training images.

    The images are pixels in [0, 1] on the device of the model.
    """
    if not alpha >= 0:
        raise UserError(f"alpha: {alpha} must be at least 0, in standard deviations")
    sparse = copy.deepcopy(model)
    statistics = {name: _Statistics() for name, module in sparse.named_modules() if _is_activation(module)}
    with _observed(sparse, statistics), eval_mode(sparse), torch.no_grad():
        for batch in torch.split(images, batch_size):
            sparse(batch)
    used = {name: statistic for name, statistic in statistics.items() if statistic.count}
    if not used:
        raise UserError(
            f"{type(model).__name__}: no activation modules such as nn.GELU to put MeanSparse before; activations that "
            "are called as functions can't be reached"
        )
    for name, statistic in used.items():
        parent, _, child = name.rpartition(".")
        before = sparse.get_submodule(name)
        changed = MeanSparse(before, *statistic.result(), statistic.axis, alpha, straight_through)
        setattr(sparse.get_submodule(parent), child, changed.train(before.training))
    return sparse


@dataclass
class _Statistics:
    """Of the channels of an activation's inputs, added up in float64."""

    count: int = 0
    sums: list[Tensor] = field(default_factory=list)
    axis: int = -1

    def add(self, x: Tensor, axis: int) -> None:
        values = x.detach().double().movedim(axis, -1).flatten(0, -2)
        self.axis, self.count = axis, self.count + len(values)
        now = [values.sum(0), values.square().sum(0)]
        self.sums = [old + new for old, new in zip(self.sums, now, strict=True)] if self.sums else now

    def result(self) -> tuple[Tensor, Tensor]:
        mean, square = (total / self.count for total in self.sums)
        return mean.float(), (square - mean.square()).clamp(min=0).sqrt().float()


def _is_activation(module: nn.Module) -> bool:
    home = type(module).__module__
    is_plain = not isinstance(module, _NOT_PLAIN) and not list(module.children())
    return is_plain and (home == torch_activations.__name__ or home.startswith(_TIMM))


@contextmanager
def _observed(model: nn.Module, statistics: dict[str, _Statistics]) -> Iterator[None]:
    """Channels are the last axis of what a linear layer or layer norm made, else the second of a picture's four."""
    last: list[tuple[Tensor, bool]] = []

    def made(module: nn.Module, args: object, output: object) -> None:
        if isinstance(output, Tensor):
            last[:] = [(output, isinstance(module, nn.Linear | nn.LayerNorm))]

    def see(statistic: _Statistics, x: Tensor) -> None:
        is_last = x.ndim != 4 or (bool(last) and last[0][0] is x and last[0][1])
        statistic.add(x, -1 if is_last else 1)

    leaves = [m for m in model.modules() if not list(m.children()) and not _is_activation(m)]
    handles = [module.register_forward_hook(made) for module in leaves]
    for name, statistic in statistics.items():
        module = model.get_submodule(name)
        handles.append(module.register_forward_pre_hook(lambda _, args, statistic=statistic: see(statistic, args[0])))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()

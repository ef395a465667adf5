"""How a batch is cut into parts, which of them a process computes, and how their gradients become one."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from robustvit.core.errors import UserError
from robustvit.core.streams import seeded_globals
from robustvit.core.world import World
from robustvit.models.sharding import is_sharded

GradientSum = Literal["exact", "fast"]
FEW = 16
"""Images of a part below which the statistics of batch norms are noisy."""


@dataclass(frozen=True)
class Parts:
    """The parts of a batch, as many as the recipe says, or the next multiple of the processes."""

    rows: int
    """Of the whole batch."""
    count: int
    world: World
    gradient_sum: GradientSum = "exact"

    @classmethod
    def of(cls, rows: int, wanted: int, world: World, gradient_sum: GradientSum = "exact") -> "Parts":
        parts = cls(rows, -(-wanted // world.size) * world.size, world, gradient_sum)
        if -(-rows // parts.size) != parts.count:
            into = f"{parts.count} parts{f' for {world.size} processes' if world.size > 1 else ''}"
            problem = f"a batch of {rows} images can't be cut into {into}, of one size but for the last"
            raise UserError(f"recipe.accumulate: {problem}; choose a batch_size that {parts.count} divides")
        return parts

    @property
    def size(self) -> int:
        """Images of a part; the last one may have fewer."""
        return -(-self.rows // self.count)

    @property
    def _chunks(self) -> tuple[Tensor, ...]:
        return torch.split(torch.arange(self.rows), self.size)

    @property
    def own(self) -> range:
        """Numbers of this process's parts."""
        each = self.count // self.world.size
        return range(self.world.rank * each, (self.world.rank + 1) * each)

    @property
    def own_rows(self) -> Tensor:
        """Of the whole batch."""
        return torch.cat([self._chunks[number] for number in self.own])

    def __iter__(self) -> Iterator[tuple[int, slice]]:
        """This process's parts with their rows among its own."""
        begin = 0
        for number in self.own:
            end = begin + len(self._chunks[number])
            yield number, slice(begin, end)
            begin = end

    def seeded(self, number: int, key: tuple[str | int, ...]) -> AbstractContextManager[None]:
        """Global generators for a part, so that dropout draws the same wherever it is computed."""
        return seeded_globals(*key, "part", number) if self.count > 1 else nullcontext()

    @property
    def is_invariant(self) -> bool:
        """Whether other numbers of processes that are a power of two apart end with the same bits."""
        each = self.count // self.world.size
        return self.gradient_sum == "exact" and each & (each - 1) == 0

    def add_gradients(self, model: nn.Module, backward: Callable[[int, slice], bool]) -> bool:
        """Set the gradients of the whole batch; whether every part was finite, as `backward` says of each.

        Every part begins with the running statistics that the step began with; their mean over the parts is kept, as
        one update of them.
        """
        if is_sharded(model):
            return self._add_sharded(model, backward)
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        statistics, counts = _running_statistics(model)
        before = [tensor.clone() for tensor in (*statistics, *counts)]

        def computed() -> Iterator[list[Tensor]]:
            for number, rows in self:
                _assign([*statistics, *counts], before)
                _clear(trained)
                is_finite = backward(number, rows)
                gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in trained]
                flags = [float(not is_finite), *(float(p.grad is not None) for p in trained)]
                yield [gradients[0].new_tensor(flags), *gradients, *(tensor.clone() for tensor in statistics)]

        flags, *total = self.world.sum(computed(), self.gradient_sum == "exact")
        for parameter, gradient, is_used in zip(trained, total, flags[1:].tolist(), strict=False):
            parameter.grad = gradient if is_used else None
        _assign(statistics, [tensor / self.count for tensor in total[len(trained) :]])
        return float(flags[0]) == 0

    def _add_sharded(self, model: nn.Module, backward: Callable[[int, slice], bool]) -> bool:
        """Where every backward pass adds the mean over the processes, in an order of the library's."""
        _clear(list(model.parameters()))
        finite = [backward(number, rows) for number, rows in self]  # none may be left out: the others wait for it
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(self.world.size)
        return all(map(all, self.world.gather(finite)))


def parts_warning(parts: Parts, wanted: int, model: nn.Module) -> str:
    """All that a user should know of the way a batch is cut; else empty."""
    size, each, problems = parts.world.size, parts.count // parts.world.size, []
    if size > 1 and is_sharded(model):
        problems.append(f"shard on {size} processes: weights differ from those of one process by rounding")
    elif size > 1 and (parts.count != wanted or not parts.is_invariant):
        same = f"accumulate={max(1, 1 << (each - 1).bit_length()) * size} and gradient_sum=exact"
        differs = f"{size} processes and accumulate={wanted}: other weights than on one process"
        problems.append(f"{differs}; {same} keep them the same")
    has_norms = any(isinstance(module, _BatchNorm) for module in model.modules())
    if has_norms and parts.count > 1 and parts.rows // parts.count < FEW:
        images = f"{parts.rows // parts.count} images in each of the {parts.count} parts of a batch"
        problems.append(f"{images}: batch norms take their statistics from each part; use a larger batch_size")
    return ". ".join(problems)


def _running_statistics(model: nn.Module) -> tuple[list[Tensor], list[Tensor]]:
    """Of batch norms that keep them now: means and variances; how often they were updated."""
    norms = [m for m in model.modules() if isinstance(m, _BatchNorm) and m.training and m.track_running_stats]
    pairs = [tensor for norm in norms for tensor in (norm.running_mean, norm.running_var)]
    counts = [norm.num_batches_tracked for norm in norms]
    return [tensor for tensor in pairs if tensor is not None], [tensor for tensor in counts if tensor is not None]


@torch.no_grad()
def _assign(tensors: list[Tensor], values: list[Tensor]) -> None:
    for tensor, value in zip(tensors, values, strict=True):
        tensor.copy_(value)


def _clear(parameters: list[nn.Parameter]) -> None:
    for parameter in parameters:
        parameter.grad = None

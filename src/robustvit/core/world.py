"""The processes of one job."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import Any, TypeVar

import torch.distributed as dist
from torch import Tensor

from robustvit.core.errors import UserError

T = TypeVar("T")

CONNECT_TIMEOUT = timedelta(minutes=2)
COLLECTIVE_TIMEOUT = timedelta(days=30)
"""Long, because shards of an evaluation may differ by hours; a process that dies closes its connections at once."""


@dataclass(frozen=True)
class World:
    """Process `rank` of `size`; handed in, never read from the environment by the library.

    With several processes, the first collective connects them (torch.distributed, gloo); a process group that exists
    already is used as it is.
    """

    rank: int = 0
    size: int = 1
    device: str = "cpu"
    """Where this process computes."""
    init_method: str = "env://"
    """How the processes find each other, as torch.distributed names it."""

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def shard(self, indices: Tensor) -> Tensor:
        """Every size-th image, so that easy and hard ones are spread."""
        return indices[indices % self.size == self.rank]

    def barrier(self) -> None:
        if self.size > 1:
            dist.barrier(self._group())

    def gather(self, value: T) -> list[T]:
        """The value of every process, in the order of their ranks, in every process."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, self._group())
        return values

    def broadcast(self, value: T) -> T:
        """The value of the first process."""
        if self.size == 1:
            return value
        values = [value]
        dist.broadcast_object_list(values, 0, self._group())
        return values[0]

    def agree(self, value: object, what: str) -> None:
        """Raise in every process where the values differ."""
        values = self.gather(value)
        for rank, other in enumerate(values):
            if other != values[0]:
                raise UserError(f"{what}: {values[0]!r} in process 0, {other!r} in process {rank}; they must agree")

    def sum(self, tensors: Sequence[Tensor]) -> Tensor:
        """The sum of the parts of all processes, in every process.

        Neighbors are added first, then neighboring pairs, and so on: the same bits however a power of two of parts is
        spread over processes.
        """
        total = _tree_sum(tensors)
        if self.size == 1:
            return total
        group, device, total = self._group(), total.device, total.cpu().contiguous()
        stride = 1
        while stride < self.size:
            if self.rank % (2 * stride):
                dist.send(total, self.rank - stride, group)
                break
            if self.rank + stride < self.size:
                received = total.new_empty(total.shape)
                dist.recv(received, self.rank + stride, group)
                total = total + received
            stride *= 2
        dist.broadcast(total, 0, group)
        return total.to(device)

    def _group(self) -> Any:
        return _connected(self.rank, self.size, self.init_method)


def _tree_sum(tensors: Sequence[Tensor]) -> Tensor:
    level = list(tensors)
    while len(level) > 1:
        pairs = [a + b for a, b in zip(level[::2], level[1::2], strict=False)]
        level = pairs + level[2 * len(pairs) :]
    return level[0]


@cache
def _connected(rank: int, size: int, init_method: str) -> Any:
    if dist.is_initialized():
        return None  # the default group
    try:
        dist.init_process_group("gloo", init_method, timeout=CONNECT_TIMEOUT, world_size=size, rank=rank)
    except (RuntimeError, ValueError) as error:
        raise UserError(f"process {rank} of {size} can't connect to the others: {error}".splitlines()[0]) from error
    return dist.new_group(timeout=COLLECTIVE_TIMEOUT)

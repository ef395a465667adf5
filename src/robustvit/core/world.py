"""The processes of one job, the devices they compute on, and how they are started on this machine."""

import atexit
import multiprocessing
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from robustvit.core.errors import UserError, first_line
from robustvit.core.progress import Progress

T = TypeVar("T")

CONNECT_TIMEOUT = timedelta(minutes=2)
COLLECTIVE_TIMEOUT = timedelta(days=30)
"""Long, because shards of an evaluation may differ by hours; a process that dies closes its connections at once."""


@dataclass(frozen=True)
class World:
    """Process `rank` of `size`; handed in, never read from the environment by the library.

    With several processes, the first collective connects them (torch.distributed, gloo); where a process group exists
    already, it must have this rank and size, and gets a gloo group of its own.
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
        if (self, dist.group.WORLD) not in _groups:
            group = _connect(self)
            _groups[self, dist.group.WORLD] = group
        return _groups[self, dist.group.WORLD]


_groups: dict[tuple[World, Any], Any] = {}
"""The connection of each world; one that was made under another process group has ended."""


def _tree_sum(tensors: Sequence[Tensor]) -> Tensor:
    level = list(tensors)
    while len(level) > 1:
        pairs = [a + b for a, b in zip(level[::2], level[1::2], strict=False)]
        level = pairs + level[2 * len(pairs) :]
    return level[0]


def _connect(world: World) -> Any:
    rank, size = world.rank, world.size
    if dist.is_initialized():
        if (dist.get_rank(), dist.get_world_size()) != (rank, size):
            there = f"process {dist.get_rank()} of {dist.get_world_size()}"
            raise UserError(f"world: process {rank} of {size}, but the process group of this program has {there}")
        return dist.new_group(backend="gloo", timeout=COLLECTIVE_TIMEOUT)
    try:
        dist.init_process_group("gloo", world.init_method, timeout=CONNECT_TIMEOUT, world_size=size, rank=rank)
    except (RuntimeError, ValueError) as error:
        raise UserError(f"process {rank} of {size} can't connect to the others: {error}".splitlines()[0]) from error
    atexit.register(_disconnect)
    return dist.new_group(timeout=COLLECTIVE_TIMEOUT)


def _disconnect() -> None:
    """Before the interpreter ends: a thread of gloo that asks for the interpreter afterwards aborts the process."""
    _groups.clear()
    if dist.is_initialized():
        dist.destroy_process_group()


def resolve_device(name: str = "auto", model: object = None) -> str:
    """`auto`: the accelerator that holds the model, else cuda where there is one, else cpu; mps must be named."""
    refuse_meta(model)
    if name == "auto":
        held = model_device(model) or "cpu"
        is_accelerated = held.partition(":")[0] not in ("cpu", "meta")
        name = held if is_accelerated else "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(1, device=torch.device(name)).cpu()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise UserError(f"device '{name}' can't be used: {first_line(error)[:160]}") from None
    return name


def refuse_meta(model: object) -> None:
    """A model that was built without memory for its weights."""
    if isinstance(model, nn.Module) and any(value.is_meta for value in (*model.parameters(), *model.buffers())):
        raise UserError("the model has tensors of the meta device, which hold no numbers; load its weights first")


def model_device(model: object) -> str | None:
    """Where a module's weights are."""
    tensors = [*model.parameters(), *model.buffers()] if isinstance(model, nn.Module) else []
    return str(tensors[0].device) if tensors else None


def is_out_of_memory(error: BaseException) -> bool:
    """Of a GPU, or of this machine, whose allocator has no error class of its own."""
    return isinstance(error, torch.cuda.OutOfMemoryError) or "can't allocate memory" in str(error)


Work = Callable[..., None]


def run_processes(count: int, work: Work, arguments: dict[str, Any], folder: Path) -> None:
    """Call `work(world=..., **arguments)` in `count` fresh processes of one thread each; all end before this returns.

    Fresh rather than forked, because a fork of a process whose OpenMP threads have run can hang.
    """
    context = torch.multiprocessing.get_context("spawn")
    mistakes = context.SimpleQueue()
    processes = [
        context.Process(target=_work, args=(work, World(rank, count), arguments, mistakes, Progress.outer), daemon=True)
        for rank in range(count)
    ]
    try:
        for process in processes:
            process.start()
    except (AttributeError, TypeError, RuntimeError) as error:
        if not isinstance(error, RuntimeError) and "pickle" not in str(error):
            raise
        raise UserError(
            f"several processes need a model that can be pickled ({first_line(error)}); use processes=1"
        ) from None
    for process in processes:
        process.join()
    if not mistakes.empty():
        raise UserError(mistakes.get())
    broken = [process.exitcode for process in processes if process.exitcode]
    if broken:
        raise UserError(
            f"{folder}: {len(broken)} of {count} processes ended early (code {broken[0]}); what they did is kept, and "
            "the same command resumes (a script of your own must call it below if __name__ == '__main__':)"
        )


def _work(work: Work, world: World, arguments: dict[str, Any], mistakes: Any, outer: str) -> None:
    torch.set_num_threads(1)
    Progress.outer = outer
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    try:
        work(world=world, **arguments)
    except UserError as error:
        mistakes.put(str(error))
    except KeyboardInterrupt:
        raise SystemExit(130) from None


def _end_with_the_parent() -> None:
    """An orphan would write next to the processes of the same command started again."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)

"""The processes of one job and the devices they compute on."""

import atexit
import socket
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from robustvit.core.errors import UserError, first_line

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
    timeout: timedelta = COLLECTIVE_TIMEOUT
    """How long a collective waits: a machine that lost its power or network closes no connection."""

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def shard(self, indices: Tensor) -> Tensor:
        """Every size-th image, so that easy and hard ones are spread."""
        return indices[indices % self.size == self.rank]

    def barrier(self) -> None:
        if self.size > 1:
            dist.barrier(self.group)

    def gather(self, value: T) -> list[T]:
        """The value of every process, in the order of their ranks, in every process."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, self.group)
        return values

    def broadcast(self, value: T) -> T:
        """The value of the first process."""
        if self.size == 1:
            return value
        values = [value]
        dist.broadcast_object_list(values, 0, self.group)
        return values[0]

    def agree(self, value: object, what: str) -> None:
        """Raise in every process where the values differ."""
        values = self.gather((value, socket.gethostname()))
        (first, host), *others = values
        for rank, (other, place) in enumerate(others, start=1):
            if other != first:
                here, there = f"{first!r} in process 0 ({host})", f"{other!r} in process {rank} ({place})"
                raise UserError(f"{what}: {here}, {there}; they must agree")

    def first(self, work: Callable[[], T]) -> T:
        """What the first process makes of it, in every process; its UserError, too, so that none waits for it."""
        made: T | UserError | None = None
        if self.is_first:
            try:
                made = work()
            except UserError as error:
                made = error
        made = self.broadcast(made)
        if isinstance(made, UserError):
            raise made
        return made  # type: ignore[return-value]

    @contextmanager
    def together(self) -> Iterator[None]:
        """An error in one process is everybody's: those that it leaves waiting raise it with the name of its host.

        All processes enter it equally often, so that an error of an earlier time isn't taken for one of this time.
        """
        _Together.times += self.size > 1 and _Together.depth == 0
        _Together.depth += self.size > 1
        try:
            yield
        except Exception as error:
            if self.size > 1 and dist.is_initialized():
                if is_disconnected(error) and (problem := _failure()):
                    raise UserError(problem) from None
                if not is_disconnected(error):
                    kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
                    _failed(f"process {self.rank} ({socket.gethostname()}): {kind}{first_line(error)}")
            raise
        finally:
            _Together.depth -= self.size > 1

    def sum(self, parts: Iterable[Sequence[Tensor]], exact: bool = True) -> list[Tensor]:
        """The sum of the parts of all processes, in every process; a part is a list of tensors.

        Neighbors are added first, then neighboring pairs, and so on: the same bits however a power of two of parts is
        spread over processes. Parts are taken one by one, and few of them are held at the same time. Not `exact`: one
        all-reduce, in an order of the library's.
        """
        total = _tree_sum(parts)
        if self.size == 1:
            return total
        flat = torch.cat([tensor.detach().reshape(-1) for tensor in total]).cpu()
        if exact:
            flat = self._tree_over_processes(flat)
        else:
            dist.all_reduce(flat, group=self.group)
        pieces = torch.split(flat.to(total[0].device), [tensor.numel() for tensor in total])
        return [piece.view_as(tensor) for piece, tensor in zip(pieces, total, strict=True)]

    def _tree_over_processes(self, total: Tensor) -> Tensor:
        group, stride = self.group, 1
        while stride < self.size:
            if self.rank % (2 * stride):
                dist.send(total, self.rank - stride, group)
                break
            if self.rank + stride < self.size:
                received = torch.empty_like(total)
                dist.recv(received, self.rank + stride, group)
                total = total + received
            stride *= 2
        dist.broadcast(total, 0, group)
        return total

    @property
    def group(self) -> Any:
        """Of torch.distributed, for collectives of other libraries; connects the processes."""
        if (self, dist.group.WORLD) not in _groups:
            group = _connect(self)
            _groups[self, dist.group.WORLD] = group
        return _groups[self, dist.group.WORLD]


class _Together:
    """How often this process was in `together`, and how deep it is in it now."""

    times, depth = 0, 0


_groups: dict[tuple[World, Any], Any] = {}
"""The connection of each world; one that was made under another process group has ended."""
_stores: dict[Any, Store] = {}
"""That the processes found each other by, of each process group that was made here."""


def _tree_sum(parts: Iterable[Sequence[Tensor]]) -> list[Tensor]:
    """As a binary counter adds: two sums of equally many parts become one."""
    sums: list[tuple[int, list[Tensor]]] = []
    for part in parts:
        sums.append((1, list(part)))
        while len(sums) > 1 and sums[-1][0] == sums[-2][0]:
            _add_last_two(sums)
    while len(sums) > 1:
        _add_last_two(sums)
    return sums[0][1]


def _add_last_two(sums: list[tuple[int, list[Tensor]]]) -> None:
    (count, right), (more, left) = sums.pop(), sums.pop()
    sums.append((count + more, [a + b for a, b in zip(left, right, strict=True)]))


def _connect(world: World) -> Any:
    rank, size = world.rank, world.size
    if dist.is_initialized():
        if (dist.get_rank(), dist.get_world_size()) != (rank, size):
            there = f"process {dist.get_rank()} of {dist.get_world_size()}"
            raise UserError(f"world: process {rank} of {size}, but the process group of this program has {there}")
        return dist.new_group(backend="gloo", timeout=world.timeout)
    try:
        store = next(rendezvous(world.init_method, rank, size, timeout=CONNECT_TIMEOUT))[0]
        store.set_timeout(CONNECT_TIMEOUT)
        store = fresh_store(store, rank, size)
        dist.init_process_group("gloo", store=store, timeout=CONNECT_TIMEOUT, world_size=size, rank=rank)
    except (RuntimeError, ValueError) as error:
        raise UserError(f"process {rank} of {size} can't connect to the others: {error}".splitlines()[0]) from error
    _stores[dist.group.WORLD] = store
    atexit.register(_disconnect)
    return dist.new_group(timeout=world.timeout)


def fresh_store(store: Store, rank: int, size: int) -> Store:
    """A part of the store in which nothing is left of an attempt before.

    torchrun hands the same store to the processes that it starts in place of killed ones, and the addresses of the dead
    would be taken for theirs (pytorch issue 135712). Each process says hello by a number of its own; the first one
    answers all that it sees with the name of its round, until everybody has joined that round.
    """
    if rank:
        nonce = uuid.uuid4().hex
        store.set(f"hello/{rank}", nonce)
        name = store.get(f"welcome/{nonce}").decode()
        store.set(f"joined/{name}/{rank}", "1")
        return PrefixStore(name, store)
    name, begin = uuid.uuid4().hex, time.monotonic()
    missing = set(range(1, size))
    while missing:
        for other in sorted(missing):
            if store.check([f"hello/{other}"]):
                store.set(f"welcome/{store.get(f'hello/{other}').decode()}", name)
            if store.check([f"joined/{name}/{other}"]):
                missing.discard(other)
        if missing and time.monotonic() - begin > CONNECT_TIMEOUT.total_seconds():
            raise RuntimeError(f"{len(missing)} of {size} processes have not come, such as {min(missing)}")
        time.sleep(0.02)
    return PrefixStore(name, store)


def _failed(problem: str) -> None:
    if (known := _failure()) and known in problem:
        return  # it was another's, and has been passed on
    with suppress(RuntimeError):  # the store goes with the process that has it
        if (store := _store()) is not None:
            store.set(_failure_key(), problem)


def _failure() -> str:
    """Why another process has ended, if it could say so."""
    with suppress(RuntimeError):
        store, key = _store(), _failure_key()
        return store.get(key).decode() if store is not None and store.check([key]) else ""
    return ""


def _failure_key() -> str:
    """Of the work that the processes do together now; what failed before was passed on."""
    return f"robustvit/failure/{_Together.times}"


def _store() -> Store | None:
    """Where processes leave messages for each other.

    A process group that another library made hands out its store in newer versions of torch only. Without it nothing is
    lost but the sentence of the process that failed; the others still end, by the connection that it closed.
    """
    group = dist.group.WORLD
    if group in _stores:
        return _stores[group]
    handed_out: Callable[[], Store] | None = getattr(group, "get_group_store", None)
    return None if handed_out is None else handed_out()


def _disconnect() -> None:
    """Before the interpreter ends: a thread of gloo that asks for the interpreter afterwards aborts the process."""
    _groups.clear()
    _stores.clear()
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


def own_device(name: str, number: int) -> str:
    """Of process `number` of this machine: `cuda` is a GPU of its own."""
    device = resolve_device(name)
    if device == "cuda" and number >= (count := torch.cuda.device_count()):
        raise UserError(
            f"device cuda: {number + 1} processes need a GPU each, and this machine has {count}; start fewer"
        )
    return resolve_device(f"cuda:{number}") if device == "cuda" else device


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


def is_disconnected(error: BaseException) -> bool:
    """An error of a collective because another process is gone."""
    signs = ("connection closed by peer", "connection reset by peer", "broken pipe", "gloo")
    return is_overdue(error) or (isinstance(error, RuntimeError) and any(sign in str(error).lower() for sign in signs))


def is_overdue(error: BaseException) -> bool:
    """An error of a collective that has waited too long."""
    return isinstance(error, RuntimeError) and any(sign in str(error).lower() for sign in ("timed out", "timeout"))

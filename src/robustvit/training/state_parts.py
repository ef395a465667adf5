"""The training state of a network that is spread over processes: each writes its part, any number of them reads it.

The parts are safetensors files, written and read by torch.distributed.checkpoint. The rest of the state has tensors of
the meta device in place of those that are spread, and the sha256 of every part.
"""

import hashlib
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from robustvit.core.errors import UserError, first_line
from robustvit.core.files import is_file, sync_folder
from robustvit.core.world import World
from robustvit.models.sharding import is_spread, mapped
from robustvit.training.task import State

PARTS = "parts"
"""Key of a state that was written in parts: their folder and digests."""


def write_parts(state: State, folder: Path, world: World) -> State:
    """The rest of the state, once all processes have written what is spread over them; each must call it."""
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    tensors: dict[str, Tensor] = {}

    def taken(path: str, value: Any) -> Any:
        if not is_spread(value):
            return value
        tensors[path] = value
        return torch.empty(value.shape, dtype=value.dtype, device="meta")

    rest = mapped(state, taken)
    writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
    try:
        with _connected(world) as connection:
            save(tensors, storage_writer=writer, **connection)
    except CheckpointException as error:
        raise UserError(f"{folder.parent}: {_reason(error)}; states before this one are intact") from None
    own = folder.glob(f"shard-{world.rank + 1:05d}-*")
    digests = [item for digests in world.gather({path.name: _sha256(path) for path in own}) for item in digests.items()]
    world.first(lambda: sync_folder(folder))
    return {**rest, PARTS: {"folder": str(folder), "sha256": dict(digests)}}


def damaged_part(folder: Path, digests: dict[str, str]) -> str:
    """The name of the first part that is missing or has another content than was written; else empty."""
    for name, digest in digests.items():
        if not is_file(folder / name) or _sha256(folder / name) != digest:
            return name
    return ""


def read_parts(state: State, like: Callable[[str], Any], world: World) -> State:
    """The whole state again, spread over these processes as `like`, the tensor of a path, is; each must call it."""
    if PARTS not in state:
        return state
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    tensors: dict[str, Tensor] = {}

    def made(path: str, value: Any) -> Any:
        if not (isinstance(value, Tensor) and value.is_meta):
            return value
        known = like(path)
        if is_spread(known) and known.shape == value.shape:
            tensors[path] = torch.empty_like(known, dtype=value.dtype)
        else:
            tensors[path] = torch.empty(value.shape, dtype=value.dtype)
        return tensors[path]

    whole = mapped({key: value for key, value in state.items() if key != PARTS}, made)
    reader = HuggingFaceStorageReader(state[PARTS]["folder"])
    try:
        with _connected(world) as connection:
            load(tensors, storage_reader=reader, **connection)
    except CheckpointException as error:
        raise RuntimeError(_reason(error)) from None
    filled: State = whole
    return filled


@contextmanager
def _connected(world: World) -> Iterator[dict[str, Any]]:
    """How torch.distributed.checkpoint reaches the others."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")  # which is so in a single process
        yield {"no_dist": True} if world.size == 1 else {"process_group": world.group}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _reason(error: Any) -> str:
    """Of the first process that failed."""
    failures = [failure for failure, _ in error.failures.values()]
    return f"a part of the state could not be written or read ({first_line(failures[0])})"

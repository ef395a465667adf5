"""Training state on disk: the newest two are kept, and a damaged one is replaced by the previous one."""

import hashlib
import io
import re
from pathlib import Path

import torch

from robustvit.core.files import write_atomic
from robustvit.core.progress import say
from robustvit.training.task import State

_NAME = re.compile(r"state-(\d{9})-([0-9a-f]{16})\.pt")
_KEPT = 2


def save_state(folder: Path, number: int, state: State) -> None:
    """Plain types and tensors only, so that `weights_only` loads it; the name holds a digest of the content."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    data = buffer.getbuffer()
    write_atomic(folder / f"state-{number:09d}-{_digest(data)}.pt", lambda file: file.write(data))
    for path in _states(folder)[_KEPT:]:
        path.unlink()


def load_newest_state(folder: Path) -> State | None:
    """The newest intact state; a damaged one is reported and renamed."""
    for path in _states(folder):
        data = path.read_bytes()
        if _digest(data) == path.stem.rpartition("-")[2]:
            state: State = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
            return state
        renamed = path.with_suffix(".damaged")
        path.rename(renamed)  # so that it no longer counts among the newest
        say(f"{path}: damaged (its content isn't what was written), now {renamed.name}; trying the previous one")
    return None


def _digest(data: bytes | memoryview) -> str:
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def _states(folder: Path) -> list[Path]:
    """Newest first."""
    return sorted((path for path in folder.glob("state-*.pt") if _NAME.fullmatch(path.name)), reverse=True)

"""Training state on disk: the newest two are kept, and a damaged one gives way to the one before."""

import io
import pickle
import re
from pathlib import Path
from typing import Any

import torch

from robustvit.core.errors import first_line
from robustvit.core.files import write_atomic
from robustvit.core.progress import say

State = dict[str, Any]
_NAME = re.compile(r"state-(\d+)\.pt")
_KEPT = 2


def save_state(folder: Path, number: int, state: State) -> None:
    """Plain types and tensors only, so that `weights_only` loads it."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    write_atomic(folder / f"state-{number:09d}.pt", lambda file: file.write(buffer.getbuffer()))
    for path in _states(folder)[_KEPT:]:
        path.unlink()


def load_newest_state(folder: Path) -> State | None:
    """The newest state that can be read; what can't is told and left where it is."""
    for path in _states(folder):
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
        except (RuntimeError, OSError, EOFError, ValueError, LookupError, pickle.UnpicklingError) as error:
            say(f"{path}: damaged ({first_line(error)}); going on from the state before it")
            continue
        if isinstance(state, dict):
            return state
        say(f"{path}: holds no training state; going on from the state before it")
    return None


def _states(folder: Path) -> list[Path]:
    """Newest first."""
    return sorted((path for path in folder.glob("state-*.pt") if _NAME.fullmatch(path.name)), reverse=True)

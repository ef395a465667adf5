"""Sums over many images in bounded memory, which a kill doesn't lose."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np

from robustvit.core.binary import read_arrays
from robustvit.core.errors import UserError
from robustvit.core.files import is_file, write_arrays
from robustvit.core.progress import Progress, say
from robustvit.evaluation.store import Store

T = TypeVar("T")
State = dict[str, np.ndarray]
PARTIAL = "partial.npz"
SAVE_SECONDS = 20.0
"""Between two times that the sums are written."""
_DONE = "done"


def accumulate(
    steps: Sequence[T],
    state: State,
    add: Callable[[T], int],
    store: Store,
    title: str,
    total: int,
    quiet: bool,
    unit: str = "images",
) -> None:
    """`add` changes the arrays of the state by one step after the other and says how many images, or units, it took.

    With a folder, the state is written now and then, and a call that was killed goes on from there: the sums are those
    of an unbroken one, bit for bit.
    """
    path = None if store.folder is None else store.folder / PARTIAL
    done, seen = _restored(path, state, len(steps))
    saved = time.monotonic()
    with Progress(title, total, seen, unit, quiet=quiet) as progress:
        for number in range(done, len(steps)):
            seen += add(steps[number])
            progress.update(seen)
            if path is not None and time.monotonic() - saved >= SAVE_SECONDS:
                write_arrays(path, {**state, _DONE: np.array([number + 1, seen, len(steps)])})
                saved = time.monotonic()
    if path is not None:
        path.unlink(missing_ok=True)


def _restored(path: Path | None, state: State, steps: int) -> tuple[int, int]:
    """How many steps and images a state that was written holds; what isn't of these sums is not taken."""
    if path is None or not is_file(path):
        return 0, 0
    try:
        known = read_arrays(path, None)
    except UserError as error:
        say(f"{error}; it is computed again")
        return 0, 0
    done = known.pop(_DONE, np.zeros(0, dtype=np.int64))
    fits = {name: (array.shape, array.dtype) for name, array in known.items()} == {
        name: (array.shape, array.dtype) for name, array in state.items()
    }
    if not fits or done.shape != (3,) or int(done[2]) != steps or not 0 <= int(done[0]) <= steps:
        say(f"{path}: of another computation, which begins again")
        return 0, 0
    for name, array in known.items():
        state[name][...] = array
    return int(done[0]), int(done[1])

"""What is made once from a user's files and kept: the folder may be deleted at any time."""

import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from robustvit.core.errors import UserError
from robustvit.core.files import is_file, locked
from robustvit.core.streams import digest

_one_thread = threading.Lock()  # a file lock keeps processes apart, not threads


def cache_folder() -> Path:
    """$ROBUSTVIT_CACHE, else robustvit below the user's cache folder."""
    users = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("ROBUSTVIT_CACHE") or users / "robustvit")


def files_key(files: Sequence[Path], *about: object) -> str:
    """Another one as soon as a file is added, changed or gone; `about`: whatever else the content depends on."""
    states = ((str(file.resolve()), file.stat()) for file in files)
    facts = [fact for file, state in states for fact in (file, state.st_size, state.st_mtime_ns)]
    return f"{digest(*facts, *about):016x}"


def cached(name: str, make: Callable[[Path], None]) -> Path:
    """The cache's file of this name; `make` writes it whole, once, while other processes wait."""
    folder, hint = cache_folder(), "ROBUSTVIT_CACHE names another"
    path = folder / name
    if is_file(path):
        return path
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder}: can't be the cache folder ({error.strerror}); {hint}") from None
    if not os.access(folder, os.W_OK):
        raise UserError(f"{folder}: the cache folder can't be written to; {hint}")
    with _one_thread, locked(folder / f".{name}.lock", f"making {name}", wait=True):
        if not is_file(path):
            make(path)
    return path

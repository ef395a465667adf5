"""Files that survive a kill: whole files by rename, one writer by a lock. `readers` and `binary` read them back."""

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

from robustvit.core.errors import UserError
from robustvit.core.progress import say

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_TEMPORARY = re.compile(r"\..+\.(\d+)\.tmp")
"""Names of files that are being written, with the id of the process."""


def check_system() -> None:
    """Locks are what keeps two processes out of one folder."""
    if fcntl is None:
        raise UserError("robustvit needs the file locks of Linux or macOS (no module fcntl); on Windows run it in WSL")


def is_file(path: Path) -> bool:
    """Also False where Path.is_file raises: for a name too long, or in a folder that can't be read."""
    return os.path.isfile(path)


def is_folder(path: Path) -> bool:
    return os.path.isdir(path)


def hash8(value: Any) -> str:
    """Eight digits for what the name of a folder can't hold."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:8]


def write_atomic(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """The old file or the new one, never half of one; of a link, the file that it names."""
    target = Path(os.path.realpath(path))
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    if target.exists() and not is_file(target):
        raise UserError(f"{path}: a folder, pipe or device, where a file is to be written; choose another name")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(target.parent)
        with temporary.open("wb") as file:
            try_lock(file.fileno())
            write(file)
            file.flush()
            os.fsync(file.fileno())
            temporary.replace(target)
        sync_folder(target.parent)
    except BaseException as error:
        with suppress(OSError):  # the first error is the one to report
            temporary.unlink(missing_ok=True)
        if not isinstance(error, OSError):
            raise
        # NumPy names the bytes that it could write, but no reason
        reason = error.strerror or f"{error}{'; is the disk full?' if 'requested and' in str(error) else ''}"
        raise UserError(f"{path}: could not be written ({reason}); what was there before is intact") from error


@cache
def _remove_leftovers(folder: Path) -> None:
    """Once for each folder: what processes that were killed had begun to write."""
    for path in folder.glob(".*.tmp"):
        match = _TEMPORARY.fullmatch(path.name)
        if match and not _is_alive(int(match[1])):
            with suppress(OSError), path.open("rb+") as file:
                if try_lock(file.fileno()):  # a process of another machine, if any, holds it
                    path.unlink()


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # it belongs to somebody else
        return True
    return True


def try_lock(descriptor: int) -> bool:
    """Whether this process holds the file now; also where the file system knows no locks."""
    check_system()
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except OSError:
        return True
    return True


def write_text(path: Path, text: str) -> None:
    write_atomic(path, lambda file: file.write(text.encode("utf-8")))


def write_json(path: Path, value: object) -> None:
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def check_writable(folder: Path) -> None:
    """Raises where no file can be made in a folder, before hours of work whose results belong there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except (OSError, ValueError) as error:  # the latter for a name with a null character
        raise _unusable(folder, error) from None


def _unusable(folder: Path, error: Exception) -> UserError:
    return UserError(f"{str(folder)!r}: can't be used as a folder ({getattr(error, 'strerror', None) or error})")


@contextmanager
def locked(path: Path, activity: str, wait: bool = False) -> Iterator[None]:
    """One process at a time; the lock goes with its process, however that ends. Others are refused, or `wait`.

    `lockf`, because a `flock` outlives a killed process as long as an orphaned worker holds the descriptor.
    """
    check_system()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except (OSError, ValueError) as error:  # the latter for a name with a null character
        raise _unusable(path.parent, error) from None
    try:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            owner = os.pread(descriptor, 64, 0).decode(errors="replace").strip() or "unknown"
            if not wait:
                busy = f"another process ({owner}) is {activity} here"
                raise UserError(f"{path.parent}: {busy}; wait for it or choose another folder") from None
            say(f"{path.parent}: waiting for another process ({owner}) that is {activity} here")
            fcntl.lockf(descriptor, fcntl.LOCK_EX)
        with suppress(OSError):  # who holds the lock is good to know, not needed
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"pid {os.getpid()}".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """So that names of new files survive a loss of power."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_arrays(path: Path, arrays: Mapping[str, Any]) -> None:
    import numpy as np  # which `robustvit --help` need not wait for

    write_atomic(path, lambda file: np.savez_compressed(file, **arrays))

"""Files that survive a kill: whole files by rename, one writer by a lock; JSON with a schema and .npz arrays."""

import fcntl
import hashlib
import json
import os
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from pydantic import TypeAdapter, ValidationError

from robustvit.core.errors import UserError
from robustvit.core.progress import say


def is_file(path: Path) -> bool:
    """Also False where Path.is_file raises: for a name too long, or in a folder that can't be read."""
    return os.path.isfile(path)


def is_folder(path: Path) -> bool:
    return os.path.isdir(path)


def hash8(value: Any) -> str:
    """Eight digits for what the name of a folder can't hold."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:8]


def write_atomic(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """The old file or the new one, never half of one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync_folder(path.parent)
    except BaseException as error:
        with suppress(OSError):  # the first error is the one to report
            temporary.unlink(missing_ok=True)
        if not isinstance(error, OSError):
            raise
        reason = error.strerror or error
        raise UserError(f"{path}: could not be written ({reason}); what was there before is intact") from error


def write_text(path: Path, text: str) -> None:
    write_atomic(path, lambda file: file.write(text.encode("utf-8")))


def write_json(path: Path, value: object) -> None:
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not JSON ({error})") from None


@contextmanager
def locked(path: Path, activity: str, wait: bool = False) -> Iterator[None]:
    """One process at a time; the lock goes with its process, however that ends. Others are refused, or `wait`.

    `lockf`, because a `flock` outlives a killed process as long as an orphaned worker holds the descriptor.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise UserError(f"{path.parent}: can't be used as a folder ({error.strerror})") from None
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


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_record(path: Path, what: str, schema: TypeAdapter[Any], arrays: Mapping[str, Any], remedy: str) -> Any:
    """The content of a JSON file, with what its arrays hold, as the schema describes it."""
    content = read_json(path)
    try:
        return schema.validate_python({**content, **arrays})
    except ValidationError as error:
        first = error.errors()[0]
        problem = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    except (KeyError, TypeError, ValueError) as error:
        problem = str(error)
    raise UserError(f"{path}: not a whole {what} ({problem}); {remedy}")


def write_arrays(path: Path, arrays: Mapping[str, Any]) -> None:
    write_atomic(path, lambda file: np.savez_compressed(file, **arrays))


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except (OSError, ValueError, KeyError, EOFError, TypeError, zipfile.BadZipFile) as error:
        raise UserError(f"{path}: damaged, or not an .npz file ({error})") from None

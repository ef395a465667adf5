"""JSON files with a schema, and arrays in .npz files next to them."""

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter, ValidationError

from robustvit.core.errors import UserError
from robustvit.core.files import read_json, write_atomic


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

"""Checksums inside of files show that a number was changed: of JSON, of the arrays next to it, of rows of arrays."""

import json
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from robustvit.core.files import hash8
from robustvit.core.readers import conforming, read_json, unreadable

KEY = "checksum"


def with_checksum(content: Mapping[str, Any], arrays: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Plain data as JSON holds it, with a checksum as its last key."""
    plain = json.loads(json.dumps(content, allow_nan=False))
    return {**plain, KEY: _checksum(plain, arrays)}


def without_checksum(
    content: Mapping[str, Any], where: object, remedy: str, arrays: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """What `with_checksum` was given; an error if it has been changed since."""
    plain = {key: value for key, value in content.items() if key != KEY}
    if content.get(KEY) != _checksum(plain, arrays):
        raise unreadable(where, "its content was changed after it was written (the checksum differs)", remedy)
    return plain


def read_json_with_checksum(path: Path, schema: TypeAdapter[Any], what: str, remedy: str) -> dict[str, Any]:
    """The content of a JSON file that was written with a checksum and is as a schema describes it."""
    content = read_json(path, TypeAdapter(dict[str, Any]), what, remedy)
    conforming(content, schema, path, what, remedy)  # first, as its message names the place
    return without_checksum(content, path, remedy)


def row_checksums(arrays: Mapping[str, np.ndarray], folder: Path | None = None) -> np.ndarray:
    """Of each row of arrays of one length; with a folder also of its name, so that other evaluations' rows differ."""
    seed = 0 if folder is None else zlib.crc32(os.fsencode(folder.name))
    sums = [seed] * min(map(len, arrays.values()))
    for name in sorted(arrays):
        sums = [zlib.crc32(row.tobytes(), one) for row, one in zip(arrays[name], sums, strict=True)]
    return np.array(sums, np.int64)


def _checksum(plain: Mapping[str, Any], arrays: Mapping[str, Any] | None) -> str:
    known = {name: (one.dtype.str, one.shape, zlib.crc32(one.tobytes())) for name, one in (arrays or {}).items()}
    return hash8((plain, known))

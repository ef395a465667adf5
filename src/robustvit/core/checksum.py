"""A checksum inside of a JSON file, of its content and of the arrays next to it: a changed number is noticed."""

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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


def _checksum(plain: Mapping[str, Any], arrays: Mapping[str, Any] | None) -> str:
    known = {name: (one.dtype.str, one.shape, zlib.crc32(one.tobytes())) for name, one in (arrays or {}).items()}
    return hash8((plain, known))

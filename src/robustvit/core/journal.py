"""Append-only files of JSON lines that survive a kill: a torn last line is cut, and a checksum shows damage.

The checksum also covers the name of the folder, so that a line copied from another folder counts as damaged.
"""

import json
import os
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import TypeAdapter

from robustvit.core.errors import UserError
from robustvit.core.files import write_atomic
from robustvit.core.readers import MOST_BYTES, conforming, parse_json, regular_size

Row = dict[str, Any]
_CRC = b', "crc": "'


class Content(NamedTuple):
    """What was read of a journal."""

    rows: list[Row]
    damaged: list[int]
    """Numbers of the lines that aren't JSON or whose checksum doesn't fit."""
    end: int
    """Where the last whole line ends."""


def read_rows(path: Path, schema: TypeAdapter[Any] | None = None) -> list[Row]:
    """The whole lines of a journal; a torn last line is left out, one before it that is damaged or not as the schema
    describes it is an error."""
    rows, damaged, end = _read(path, _parsed)
    remedy = "remove this line to go on without it"
    # a damaged line at the very end is a torn one that the next writer ended
    if damaged and (damaged != [len(rows) + 1] or end < path.stat().st_size):
        raise UserError(f"{path}, line {damaged[0]}: damaged; {remedy}")
    if schema is not None:
        for number, row in enumerate(rows, start=1):
            conforming(row, schema, f"{path}, line {number}", "row", remedy)
    return rows


class Journal:
    """An append-only `.jsonl` file: rows are on disk when `append` returns."""

    def __init__(self, path: Path, schema: TypeAdapter[Any] | None = None) -> None:
        self.path, self._schema = path, schema

    def read(self) -> list[Row]:
        return read_rows(self.path, self._schema)

    def append(self, rows: Sequence[Row], checked: bool = False) -> None:
        """With `checked`, each line carries a checksum, and `read_checked` reads the file."""
        if not rows:
            return
        text = b"".join(checked_line(row, self.path) if checked else _line(row) for row in rows)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab") as file:
                whole = file.tell()
                try:
                    file.write(text)
                    file.flush()
                    os.fsync(file.fileno())
                except OSError:
                    with suppress(OSError):
                        file.truncate(whole)
                    raise
        except OSError as error:
            reason = f"could not be appended to ({error.strerror or error})"
            raise UserError(f"{self.path}: {reason}; the rows before are intact") from error

    def repair(self) -> list[Row]:
        """Cut a torn last line off the file, then read it."""
        rows = self.read()
        if self.path.exists():
            with self.path.open("rb") as file:
                whole = sum(map(len, islice(file, len(rows))))
            _cut(self.path, whole)
        return rows

    def rewrite(self, rows: Sequence[Row]) -> None:
        write_atomic(self.path, lambda file: file.write(b"".join(map(_line, rows))))


def _line(row: Row) -> bytes:
    return json.dumps(row, allow_nan=False).encode() + b"\n"


def checked_line(row: Row, path: Path) -> bytes:
    """A line of JSON for this file, with a checksum of itself and of the folder at its end."""
    body = _line(row).removesuffix(b"}\n")
    return body + _CRC + _checksum(body, path)


def read_checked(path: Path, begin: int = 0) -> Content:
    """The whole lines from a byte on; a torn last line is left for later, damaged ones are named."""
    return _read(path, partial(_parsed_checked, path), begin)


def repair_checked(path: Path) -> list[int]:
    """Cut a torn last line off the file, take damaged ones out, and say which those were."""
    _, damaged, end = read_checked(path)
    _cut(path, end)
    if damaged:
        with path.open("rb") as file:
            kept = [line for line in iter(lambda: file.readline(MOST_BYTES), b"") if _parsed_checked(path, line)]
        write_atomic(path, lambda file: file.write(b"".join(kept)))
    return damaged


def _read(path: Path, parse: Callable[[bytes], list[Row]], begin: int = 0) -> Content:
    rows: list[Row] = []
    damaged: list[int] = []
    if path.exists():
        regular_size(path)
    with path.open("rb") if path.exists() else BytesIO() as file:
        file.seek(begin)
        number = 0
        while line := file.readline(MOST_BYTES):
            if not line.endswith(b"\n") and len(line) < MOST_BYTES:
                break
            number, begin = number + 1, begin + len(line)
            row = parse(line)
            rows += row
            damaged += [] if row else [number]
    return Content(rows, damaged, begin)


def _parsed(line: bytes) -> list[Row]:
    """The row of a line; none if it is damaged."""
    try:
        row = parse_json(line, "")
    except UserError:
        return []
    return [row] if isinstance(row, dict) else []


def _parsed_checked(path: Path, line: bytes) -> list[Row]:
    body, crc, tail = line.rpartition(_CRC)
    if not crc or tail != _checksum(body, path):
        return []
    return _parsed(body + b"}")


def _checksum(body: bytes, path: Path) -> bytes:
    return f'{zlib.crc32(body, zlib.crc32(os.fsencode(path.parent.name))):08x}"}}\n'.encode()


def _cut(path: Path, end: int) -> None:
    if path.exists() and end < path.stat().st_size:
        os.truncate(path, end)

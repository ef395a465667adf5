"""Append-only files of JSON lines that survive a kill: a torn last line is cut, and a checksum shows damage."""

import json
import os
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from robustvit.core.errors import UserError
from robustvit.core.files import ignoring_os_errors, write_atomic, write_text

Row = dict[str, Any]
_CRC = b', "crc": "'


def read_rows(path: Path) -> list[Row]:
    return list(each_row(path))


def each_row(path: Path) -> Iterator[Row]:
    """The whole lines of a journal; a torn last line is left out, a broken one before it is an error."""
    if not path.exists():
        return
    with path.open("rb") as file:
        damaged = None
        for number, line in enumerate(file, start=1):
            if damaged is not None:
                raise UserError(f"{path}, line {damaged}: damaged; remove this line to go on without it")
            if not line.endswith(b"\n"):
                return
            try:
                row = json.loads(line)
            except (json.JSONDecodeError, UnicodeDecodeError):
                damaged = number  # at the end, a torn line that the next writer ended
                continue
            yield row


class Journal:
    """An append-only `.jsonl` file: rows are on disk when `append` returns."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, rows: Sequence[Row], checked: bool = False) -> None:
        """With `checked`, each line carries a checksum, and `read_checked` reads the file."""
        if not rows:
            return
        lines = (checked_line(row) if checked else json.dumps(row, allow_nan=False).encode() + b"\n" for row in rows)
        text = b"".join(lines)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab") as file:
                whole = file.tell()
                try:
                    file.write(text)
                    file.flush()
                    os.fsync(file.fileno())
                except OSError:
                    with ignoring_os_errors():
                        file.truncate(whole)
                    raise
        except OSError as error:
            raise UserError(
                f"{self.path}: could not be appended to ({error.strerror or error}); the rows before are intact"
            ) from error

    def repair(self) -> list[Row]:
        """Cut a torn last line off the file, then read it."""
        rows = read_rows(self.path)
        self.cut_torn_line(len(rows))
        return rows

    def cut_torn_line(self, whole_rows: int) -> None:
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            for _ in range(whole_rows):
                file.readline()
            whole = file.tell()
        if whole < self.path.stat().st_size:
            os.truncate(self.path, whole)

    def rewrite(self, rows: Sequence[Row]) -> None:
        write_text(self.path, "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows))


class Checked(NamedTuple):
    """What was read of a checked journal."""

    rows: list[Row]
    damaged: list[int]
    """Numbers of the lines whose checksum doesn't fit."""
    end: int
    """Where the last whole line ends."""


def checked_line(row: Row) -> bytes:
    """A line of JSON with a checksum of itself at its end."""
    body = json.dumps(row, allow_nan=False).encode()[:-1]
    return body + _CRC + f'{zlib.crc32(body):08x}"}}\n'.encode()


def read_checked(path: Path, begin: int = 0) -> Checked:
    """The whole lines from a byte on; a torn last line is left for later, damaged ones are named."""
    rows: list[Row] = []
    damaged: list[int] = []
    if not path.exists():
        return Checked(rows, damaged, begin)
    with path.open("rb") as file:
        file.seek(begin)
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                break
            begin += len(line)
            row = _checked_row(line)
            if row is None:
                damaged.append(number)
            else:
                rows.append(row)
    return Checked(rows, damaged, begin)


def repair_checked(path: Path) -> list[int]:
    """Cut a torn last line off the file, take damaged ones out, and say which those were."""
    _, damaged, end = read_checked(path)
    if path.exists() and end < path.stat().st_size:
        os.truncate(path, end)
    if damaged:
        kept = [line for line in path.read_bytes().splitlines(keepends=True) if _checked_row(line) is not None]
        write_atomic(path, lambda file: file.write(b"".join(kept)))
    return damaged


def _checked_row(line: bytes) -> Row | None:
    body, crc, tail = line.rpartition(_CRC)
    if not crc or tail != f'{zlib.crc32(body):08x}"}}\n'.encode():
        return None
    row = json.loads(body + b"}")
    return row if isinstance(row, dict) else None

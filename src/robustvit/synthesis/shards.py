"""Shards of generated images on disk: which there are, which are whole, and those that are being made."""

import os
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from robustvit.core.binary import map_array
from robustvit.core.errors import UserError
from robustvit.core.files import is_file, try_lock, write_atomic

_CHECKSUM = struct.Struct("<I")
_REMEDY = "remove it to have it made anew"


@dataclass(frozen=True)
class Shards:
    """`images-N.npy` and `labels-N.npy` of `size` images each in a folder; the last may have fewer.

    A shard is made in batches from its own begin. While it grows, `.images-N.part` has its batches, each with a
    checksum, and who makes it holds a lock on that file.
    """

    folder: Path
    total: int
    """Images of all shards."""
    size: int
    batch_size: int
    side: int
    """Of an image in pixels."""

    def __len__(self) -> int:
        return -(-self.total // self.size)

    def rows(self, number: int) -> range:
        """Images of a shard."""
        return range(number * self.size, min((number + 1) * self.size, self.total))

    def images(self, number: int) -> Path:
        return self.folder / f"images-{number:05d}.npy"

    def labels(self, number: int) -> Path:
        return self.folder / f"labels-{number:05d}.npy"

    def is_whole(self, number: int) -> bool:
        """Whether both files are there with enough images; one that is damaged is an error."""
        if not is_file(self.images(number)):
            return False
        images, labels = (map_array(path, remedy=_REMEDY) for path in (self.images(number), self.labels(number)))
        if images.shape[1:] != (self.side, self.side, 3) or labels.ndim != 1 or len(labels) < len(images):
            raise UserError(f"{self.images(number)}: other images than this folder's; {_REMEDY}")
        # more labels: a longer shard was being written, whose images are missing
        return len(images) >= len(self.rows(number)) and len(labels) == len(images)

    def count_made(self) -> int:
        """Images in whole shards and in growing ones."""
        made = 0
        for number in range(len(self)):
            part, counts = self._part(number), [0]
            if is_file(self.images(number)):
                counts.append(len(map_array(self.images(number), remedy=_REMEDY)))  # fewer where it was once the last
            if is_file(part):
                counts.append(part.stat().st_size // self._record * self.batch_size)
            made += min(len(self.rows(number)), max(counts))
        return made

    @contextmanager
    def growing(self, number: int) -> Iterator["Growing | None"]:
        """The shard as far as it is made; None: it is whole, or another process makes it."""
        with self._part(number).open("a+b") as file:
            if not try_lock(file.fileno()):
                yield None
            elif self.is_whole(number):
                self._part(number).unlink(missing_ok=True)
                yield None
            else:
                yield Growing(self, number, file)

    def write(self, number: int, images: np.ndarray, labels: np.ndarray) -> None:
        """Labels first: whoever finds images also finds their labels."""
        write_atomic(self.labels(number), lambda file: np.save(file, labels))
        write_atomic(self.images(number), lambda file: np.save(file, images))
        self._part(number).unlink(missing_ok=True)

    def _part(self, number: int) -> Path:
        return self.folder / f".images-{number:05d}.part"

    @property
    def _record(self) -> int:
        return self.batch_size * self.side**2 * 3 + _CHECKSUM.size


class Growing:
    """The batches of a shard so far; each is on disk before the next one is made."""

    def __init__(self, shards: Shards, number: int, file: BinaryIO) -> None:
        self.shards, self.number, self._file = shards, number, file
        self.batches = self._read()
        file.truncate(len(self.batches) * shards._record)  # what a kill left half written
        file.seek(0, os.SEEK_END)

    def _read(self) -> list[np.ndarray]:
        self._file.seek(0)
        batches = []
        while len(record := self._file.read(self.shards._record)) == self.shards._record:
            data, checksum = record[: -_CHECKSUM.size], record[-_CHECKSUM.size :]
            if checksum != _CHECKSUM.pack(zlib.crc32(data)):
                break
            batches.append(self._array(data))
        return batches

    def _array(self, data: bytes) -> np.ndarray:
        side = self.shards.side
        return np.frombuffer(data, np.uint8).reshape(self.shards.batch_size, side, side, 3)

    @property
    def missing(self) -> range:
        """Numbers of the batches that are left to make."""
        return range(len(self.batches), -(-len(self.shards.rows(self.number)) // self.shards.batch_size))

    def append(self, images: np.ndarray) -> None:
        data = images.tobytes()
        self._file.write(data + _CHECKSUM.pack(zlib.crc32(data)))
        self._file.flush()
        os.fsync(self._file.fileno())
        self.batches.append(images)

    def finish(self, labels: np.ndarray) -> None:
        count = len(self.shards.rows(self.number))
        self.shards.write(self.number, np.concatenate(self.batches)[:count], labels)

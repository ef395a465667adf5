"""Tar archives of pictures in WebDataset's layout, x.jpg with x.cls: where each is, indexed in one pass."""

import gzip
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np

from robustvit.core.errors import UserError, first_line
from robustvit.core.progress import Progress


@dataclass(frozen=True)
class TarMembers:
    """Pictures inside tar archives, of plain ones read in place; `index`: rows as `index_shards` makes them."""

    shards: Sequence[Path]
    index: np.ndarray

    @property
    def names(self) -> Sequence[bytes]:
        return self.index["name"]  # type: ignore[return-value]

    def place(self, index: int) -> str:
        row = self.index[index]
        return f"{self.shards[row['shard']]}: '{row['name'].decode()}'"

    def read(self, index: int) -> bytes:
        row = self.index[index]
        shard: Path = self.shards[row["shard"]]
        with shard.open("rb") as file:
            file.seek(row["offset"])
            return file.read(row["size"])

    def read_all(self) -> Iterator[bytes]:
        """Every picture in the order of the index, from zipped archives too, in one walk."""
        for number, shard in enumerate(self.shards):
            with _opened(shard) as (_, stream):
                for row in self.index[self.index["shard"] == number]:
                    stream.seek(int(row["offset"]))
                    yield stream.read(int(row["size"]))

    def state(self, index: int) -> str:
        row = self.index[index]
        state = self.shards[row["shard"]].stat()
        return f"{row['name'].decode()} {row['offset']} {row['size']} {state.st_size} {state.st_mtime_ns}"


def index_shards(shards: Sequence[Path], title: str) -> np.ndarray:
    """A row for each picture: name, label, shard, and where its bytes lie in the (unzipped) archive."""
    rows: list[tuple[bytes, int, int, int, int]] = []
    total = sum(shard.stat().st_size for shard in shards) >> 20
    with Progress(f"{title}: indexing", total, unit="MB") as progress:
        for number, shard in enumerate(shards):
            rows += [(name, label, number, offset, size) for name, label, offset, size in _samples(shard, progress)]
    longest = max((len(row[0]) for row in rows), default=1)
    fields = [("name", f"S{longest}"), ("label", "<i8"), ("shard", "<i4"), ("offset", "<i8"), ("size", "<i8")]
    return np.array(rows, dtype=fields)


def is_zipped(shard: Path) -> bool:
    with shard.open("rb") as file:
        return file.read(2) == b"\x1f\x8b"


def _samples(shard: Path, progress: Progress) -> list[tuple[bytes, int, int, int]]:
    pictures: dict[str, tuple[int, int]] = {}
    labels: dict[str, int] = {}
    with _opened(shard) as (file, stream), tarfile.open(fileobj=stream, mode="r:") as archive:
        before = progress.count
        while (member := archive.next()) is not None:
            # tarfile would keep every header of an archive that may hold millions
            archive.members.clear()  # type: ignore[attr-defined]
            folder, slash, base = member.name.rpartition("/")
            stem, _, kind = base.partition(".")
            name = (folder + slash + stem).removeprefix("./")
            if member.isfile() and kind.lower() in ("jpg", "jpeg", "png"):
                if name in pictures:
                    raise UserError(f"{shard}: holds two pictures called '{name}'")
                pictures[name] = member.offset_data, member.size
            elif member.isfile() and kind.lower() == "cls":
                stream.seek(member.offset_data)
                text = stream.read(min(member.size, 32)).strip()
                if not text.isdigit():
                    raise UserError(f"{shard}: '{member.name}' must hold a class number, not {text[:20]!r}")
                labels[name] = int(text)
            progress.update(before + (file.tell() >> 20))
    lonely = next((name for name in pictures if name not in labels), None)
    if lonely is not None:
        raise UserError(f"{shard}: picture '{lonely}' has no label '{lonely}.cls' in the same archive")
    return [(name.encode(errors="surrogateescape"), labels[name], *place) for name, place in pictures.items()]


@contextmanager
def _opened(shard: Path) -> Iterator[tuple[BinaryIO, BinaryIO]]:
    """The file, and the archive that it holds or zips."""
    try:
        with shard.open("rb") as file, gzip.GzipFile(fileobj=file) if is_zipped(shard) else nullcontext(file) as stream:
            yield file, cast(BinaryIO, stream)
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{shard}: not a whole tar archive ({first_line(error)})") from None

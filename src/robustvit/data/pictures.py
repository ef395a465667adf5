"""Encoded pictures, decoded when they are asked for: files of a folder, members of tar archives.

The archives are in WebDataset's layout, x.jpg with x.cls: one pass indexes where each picture is.
"""

import io
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from robustvit.core.binary import is_zipped, open_tar, tar_members
from robustvit.core.errors import UserError, first_line
from robustvit.core.progress import Progress
from robustvit.core.readers import read_bytes, regular_size, unreadable
from robustvit.data.base import Cut
from robustvit.data.preprocess import Preprocess

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp")
_CHUNK = 16
"""Pictures that a thread takes at a time: single small ones cost more to hand out than to decode."""


@dataclass(frozen=True)
class Files:
    """Picture files below a folder; names rather than paths, because ImageNet has 1.3 million of them."""

    root: Path
    names: Sequence[str]

    def place(self, index: int) -> str:
        return str(self.root / self.names[index])

    def read(self, index: int) -> bytes:
        return read_bytes(self.root / self.names[index])

    def state(self, index: int) -> str:
        """Another text when the picture has changed, known without reading it."""
        state = (self.root / self.names[index]).stat()
        return f"{self.names[index]} {state.st_size} {state.st_mtime_ns}"


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
            with open_tar(shard) as (_, stream):
                for row in self.index[self.index["shard"] == number]:
                    stream.seek(int(row["offset"]))
                    yield stream.read(int(row["size"]))

    def state(self, index: int) -> str:
        row = self.index[index]
        state = self.shards[row["shard"]].stat()
        return f"{row['name'].decode()} {row['offset']} {row['size']} {state.st_size} {state.st_mtime_ns}"


@dataclass(frozen=True)
class Pictures:
    """Images in files or tar archives, decoded by several threads."""

    store: Files | TarMembers
    labels: Tensor
    preprocess: Preprocess
    title: str
    num_classes: int | None
    class_names: Sequence[str] | None = None

    @property
    def names(self) -> Sequence[bytes | str]:
        return self.store.names

    @property
    def has_whole(self) -> bool:
        return self.preprocess.how != "none"

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, indices: Tensor, cut: Cut | None = None) -> tuple[Tensor, Tensor]:
        def make(picture: Image.Image, row: int) -> np.ndarray:
            return self.preprocess(picture) if cut is None else self.preprocess.cut(picture, row, cut)

        which = indices.tolist()
        store = self.store
        arrays = decode(len(which), lambda row: store.read(which[row]), lambda row: store.place(which[row]), make)
        same_size([array.shape for array in arrays], self.title)
        return torch.from_numpy(np.stack(arrays)).permute(0, 3, 1, 2).contiguous(), self.labels[indices]

    def describe(self, indices: Tensor) -> list[str]:
        """A line for each picture: cheaper than its pixels, and as telling."""
        return [f"{self.store.state(i)} {int(self.labels[i])} {self.preprocess}" for i in indices.tolist()]


def decode(
    count: int,
    read: Callable[[int], bytes],
    place: Callable[[int], str],
    make: Callable[[Image.Image, int], np.ndarray],
) -> list[np.ndarray]:
    """(H, W, 3) each, by as many threads as torch computes with: Pillow lets go of Python's lock while it decodes."""

    def decode_some(rows: Sequence[int]) -> list[np.ndarray]:
        return [decode_one(row, read(row)) for row in rows]

    def decode_one(row: int, data: bytes) -> np.ndarray:
        try:
            with Image.open(io.BytesIO(data)) as picture:
                return make(picture, row)
        except UnidentifiedImageError:
            raise UserError(f"{place(row)}: not a readable picture (of no format that is known)") from None
        except Image.DecompressionBombError:
            raise UserError(f"{place(row)}: not read, as it says that it has more pixels than any photograph") from None
        except (OSError, SyntaxError, ValueError, EOFError) as error:
            raise UserError(f"{place(row)}: not a readable picture ({first_line(error)})") from None

    rows, threads = range(count), torch.get_num_threads()
    chunk = min(_CHUNK, -(-count // threads))
    if threads == 1 or chunk < 1:
        return decode_some(rows)
    chunks = [rows[begin : begin + chunk] for begin in range(0, count, chunk)]
    with ThreadPoolExecutor(min(threads, len(chunks))) as pool:
        return [array for arrays in pool.map(decode_some, chunks) for array in arrays]


def same_size(shapes: Sequence[tuple[int, ...]], title: str) -> None:
    if len(set(shapes)) > 1:
        advice = "`preprocess: {how: crop, size: 224}` of the data or the suite brings them to one"
        raise UserError(f"{title}: its images differ in size; {advice}")


def index_shards(shards: Sequence[Path], title: str, label_of: Callable[[str], int] | None = None) -> np.ndarray:
    """A row for each picture: name, label, shard, and where its bytes lie in the (unzipped) archive.

    `label_of`: the label by the picture's name; default: what x.cls holds.
    """
    rows: list[tuple[bytes, int, int, int, int]] = []
    total = sum(map(regular_size, shards)) >> 20
    with Progress(f"{title}: indexing", total, unit="MB") as progress:
        for number, shard in enumerate(shards):
            for name, label, offset, size in _samples(shard, progress, label_of):
                rows.append((name, label, number, offset, size))
    longest = max((len(row[0]) for row in rows), default=1)
    fields = [("name", f"S{longest}"), ("label", "<i8"), ("shard", "<i4"), ("offset", "<i8"), ("size", "<i8")]
    return np.array(rows, dtype=fields)


def check_index(index: np.ndarray, shards: Sequence[Path], path: Path) -> np.ndarray:
    """An index that was read back, if every picture lies inside its archive."""
    remedy = "remove it to have it made anew"
    names = ("name", "label", "shard", "offset", "size")
    if index.ndim != 1 or index.dtype.names != names or any(index.dtype[name].kind != "i" for name in names[1:]):
        raise unreadable(path, f"not an index of tar archives but {index.dtype} {index.shape}"[:300], remedy)
    sizes = np.array([np.iinfo(np.int64).max if is_zipped(shard) else shard.stat().st_size for shard in shards])
    negative = any(len(index) and index[name].min() < 0 for name in names[1:])
    if negative or (len(index) and index["shard"].max() >= len(shards)):
        raise unreadable(path, "an index of other tar archives", remedy)
    if np.any(index["offset"] > sizes[index["shard"]]) or np.any(index["size"] > sizes[index["shard"]]):
        raise unreadable(path, "an index of other tar archives", remedy)
    with path.open("rb") as file:
        file.seek(-len(index_checksum(index)), io.SEEK_END)
        if file.read() != index_checksum(index):
            raise unreadable(path, "its content was changed after it was written (the checksum differs)", remedy)
    return index


def index_checksum(index: np.ndarray) -> bytes:
    """What follows an index in its file."""
    return zlib.crc32(index.tobytes()).to_bytes(4, "little")


def _samples(
    shard: Path, progress: Progress, label_of: Callable[[str], int] | None
) -> list[tuple[bytes, int, int, int]]:
    pictures: dict[str, tuple[int, int]] = {}
    labels: dict[str, int] = {}
    with open_tar(shard) as (file, stream):
        before = progress.count
        for member in tar_members(shard, stream):
            folder, slash, base = member.name.rpartition("/")
            stem, _, kind = base.partition(".")
            name = (folder + slash + stem).removeprefix("./")
            if member.isfile() and kind.lower() in ("jpg", "jpeg", "png"):
                if name in pictures:
                    raise UserError(f"{shard}: holds two pictures called '{name}'")
                pictures[name] = member.offset_data, member.size
                if label_of is not None:
                    labels[name] = label_of(name)
            elif member.isfile() and kind.lower() == "cls":
                stream.seek(member.offset_data)
                text = stream.read(min(member.size, 32)).strip()
                if not text.isdigit() or len(text) > 18:
                    raise UserError(f"{shard}: '{member.name}' must hold a class number, not {text[:20]!r}")
                labels[name] = int(text)
            progress.update(before + (file.tell() >> 20))
    lonely = next((name for name in pictures if name not in labels), None)
    if lonely is not None:
        raise UserError(f"{shard}: picture '{lonely}' has no label '{lonely}.cls' in the same archive")
    return [(name.encode(errors="surrogateescape"), labels[name], *place) for name, place in pictures.items()]

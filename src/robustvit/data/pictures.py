"""Encoded pictures, decoded when they are asked for: files of a folder, members of tar archives."""

import io
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from robustvit.core.errors import UserError, first_line
from robustvit.data.base import Cut
from robustvit.data.preprocess import Preprocess
from robustvit.data.tar import TarMembers

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
        return (self.root / self.names[index]).read_bytes()

    def state(self, index: int) -> str:
        """Another text when the picture has changed, known without reading it."""
        state = (self.root / self.names[index]).stat()
        return f"{self.names[index]} {state.st_size} {state.st_mtime_ns}"


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
        except (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError) as error:
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
        raise UserError(f"{title}: its images differ in size; set data.preprocess: {{how: crop, size: 224}}")

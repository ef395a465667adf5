"""Encoded pictures, decoded when they are asked for: files of a folder, members of tar archives."""

import io
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from robustvit.core.errors import UserError, first_line
from robustvit.data.base import Cut
from robustvit.data.preprocess import Picture, Preprocess

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp")
_CHUNK = 16
"""Pictures that a thread takes at a time: single small ones cost more to hand out than to decode."""


class Store(Protocol):
    """Where encoded pictures lie."""

    @property
    def names(self) -> Sequence[bytes | str]:
        """Each picture's own: what a list of images calls it."""
        ...

    def place(self, index: int) -> str:
        """Where a picture is, for messages."""
        ...

    def read(self, index: int) -> bytes: ...

    def state(self, index: int) -> str:
        """Another text when the picture has changed, known without reading it."""
        ...


@dataclass(frozen=True)
class Pictures:
    """Images of a store, decoded by several threads."""

    store: Store
    labels: Tensor
    preprocess: Preprocess
    title: str
    num_classes: int | None
    class_names: Sequence[str] | None = None

    @property
    def names(self) -> Sequence[bytes | str]:
        return self.store.names

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        return self._made(indices, lambda picture, row: self.preprocess(picture))

    @property
    def has_whole(self) -> bool:
        return self.preprocess.how != "none"

    def take_cut(self, indices: Tensor, cut: Cut) -> tuple[Tensor, Tensor]:
        def part(picture: Picture, row: int) -> np.ndarray:
            return self.preprocess.cut(picture, partial(cut.part, row), cut.interpolation)

        return self._made(indices, part)

    def _made(self, indices: Tensor, make: "Make") -> tuple[Tensor, Tensor]:
        which = indices.tolist()
        arrays = decode(
            range(len(which)), lambda row: self.store.read(which[row]), lambda row: self.store.place(which[row]), make
        )
        same_size([array.shape for array in arrays], self.title)
        return torch.from_numpy(np.stack(arrays)).permute(0, 3, 1, 2).contiguous(), self.labels[indices]

    def describe(self, indices: Tensor) -> list[str]:
        """A line for each picture: cheaper than its pixels, and as telling."""
        return [f"{self.store.state(i)} {int(self.labels[i])} {self.preprocess}" for i in indices.tolist()]


Make = Callable[[Picture, int], np.ndarray]
"""A decoded picture and its number to (H, W, 3)."""


def decode(
    indices: Sequence[int], read: Callable[[int], bytes], place: Callable[[int], str], make: Make
) -> list[np.ndarray]:
    """(H, W, 3) each, by as many threads as torch computes with: Pillow lets go of Python's lock while it decodes."""

    def decode_some(some: Sequence[int]) -> list[np.ndarray]:
        return [_decode(read(index), index, place, make) for index in some]

    threads = torch.get_num_threads()
    chunk = min(_CHUNK, -(-len(indices) // threads))
    if threads == 1 or chunk < 1:
        return decode_some(indices)
    chunks = [indices[begin : begin + chunk] for begin in range(0, len(indices), chunk)]
    with ThreadPoolExecutor(min(threads, len(chunks))) as pool:
        return [array for arrays in pool.map(decode_some, chunks) for array in arrays]


def same_size(shapes: Sequence[tuple[int, ...]], title: str) -> None:
    if len(set(shapes)) > 1:
        raise UserError(f"{title}: its images differ in size; set data.preprocess: {{how: crop, size: 224}}")


def _decode(data: bytes, index: int, place: Callable[[int], str], make: Make) -> np.ndarray:
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(data)) as picture:
            return make(picture, index)
    except UnidentifiedImageError:
        raise UserError(f"{place(index)}: not a readable picture (of no format that is known)") from None
    except (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError) as error:
        raise UserError(f"{place(index)}: not a readable picture ({first_line(error)})") from None

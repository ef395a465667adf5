"""Images in memory, or in NumPy files that are mapped: 50 million images need no memory of their own."""

import struct
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from robustvit.core.binary import map_array, read_header
from robustvit.core.component import component
from robustvit.core.errors import UserError, first_line, shortened
from robustvit.core.files import is_file, write_atomic
from robustvit.core.progress import Progress, say
from robustvit.data.base import Images, Split
from robustvit.data.cache import cached, files_key
from robustvit.data.select import Selection, selected

A = TypeVar("A", Tensor, np.ndarray)


@component("data", "arrays")
class Arrays:
    """`x.npz` with `image` (N, H, W, 3) uint8 and `label` (N,), or `x.npy` with its labels in `labels`.

    `{split}` in a path becomes train or test; without it, every split is the same file.
    """

    path: str
    """An .npz or .npy file."""
    labels: str | None = None
    """For .npy: the file with the labels; default: label.npy in its folder."""
    num_classes: int | None = None
    """Where known: a model with another number is refused. Labels outside the model's classes are refused anyway."""
    select: Selection | None = None
    """Only some classes or images."""

    @property
    def has_splits(self) -> bool:
        return "{split}" in self.path

    def open(self, split: Split) -> Images:
        labels = Path(self.labels.replace("{split}", split)) if self.labels else None
        return selected(open_arrays(Path(self.path.replace("{split}", split)), labels, self.num_classes), self.select)


@dataclass(frozen=True)
class _Stored(Generic[A]):
    """Abstract: images and their labels (N,) by index."""

    images: A
    labels: A
    title: str
    num_classes: int | None = None
    class_names: Sequence[str] | None = None
    names: np.ndarray | None = None
    """(N,) what a list of images calls them, as bytes."""

    def __len__(self) -> int:
        return len(self.labels)


class InMemory(_Stored[Tensor]):
    """Tensors (N, 3, H, W)."""

    def take(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        return self.images[indices], self.labels[indices]


class ArrayImages(_Stored[np.ndarray]):
    """Arrays (N, H, W, 3), which may be mapped."""

    def take(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        rows = indices.cpu().numpy()
        images = torch.from_numpy(np.ascontiguousarray(self.images[rows]))
        return images.permute(0, 3, 1, 2).contiguous(), torch.from_numpy(self.labels[rows].astype(np.int64))


def open_arrays(path: Path, labels: Path | None = None, num_classes: int | None = None) -> ArrayImages:
    """Of an .npz or .npy file, mapped."""
    if not is_file(path):
        raise UserError(f"path: no file '{path}'")
    if path.suffix == ".npz":
        return checked_arrays(_member(path, "image"), _member(path, "label"), path, num_classes)
    if path.suffix != ".npy":
        raise UserError(f"path: '{path}' is neither .npz nor .npy")
    classes = map_labels(labels or path.with_name("label.npy"), path)
    return checked_arrays(map_array(path), classes, path, num_classes)


def checked_arrays(images: np.ndarray, labels: np.ndarray, path: Path, num_classes: int | None) -> ArrayImages:
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[-1] != 3:
        raise UserError(f"{path}: images must be uint8 (N, H, W, 3), not {images.dtype} {images.shape}")
    if labels.shape != images.shape[:1] or not np.issubdtype(labels.dtype, np.integer):
        raise UserError(f"{path}: {len(images)} images need as many whole labels, not {labels.dtype} {labels.shape}")
    return ArrayImages(images, labels, str(path), num_classes)


def map_labels(path: Path, images: Path) -> np.ndarray:
    if not is_file(path):
        raise UserError(f"data.labels: no file '{path}' with the labels of '{images}'")
    return map_array(path)


def _member(path: Path, name: str) -> np.ndarray:
    """A member of an .npz, mapped in place if stored plainly; a compressed one is unpacked once into the cache."""
    try:
        with zipfile.ZipFile(path) as archive:
            if f"{name}.npy" not in archive.namelist():
                names = ", ".join(member.removesuffix(".npy") for member in archive.namelist())
                raise UserError(f"{path}: has no array '{name}', only: {shortened(names)}")
            info = archive.getinfo(f"{name}.npy")
            with archive.open(info) as member:
                read_header(member, info.file_size)
            if info.compress_type != zipfile.ZIP_STORED:
                return map_array(_unpacked(path, archive, info), remedy="remove it to have it unpacked anew")
        with path.open("rb") as file:  # np.load would read a member whole, whatever mmap_mode says
            file.seek(info.header_offset)
            name_length, extra_length = struct.unpack("<HH", file.read(30)[26:30])
    except UserError:
        raise
    except Exception as error:  # a damaged archive raises whatever its reader runs into
        raise UserError(f"{path}: not a whole .npz file ({shortened(first_line(error))})") from None
    return map_array(path, info.header_offset + 30 + name_length + extra_length, info.file_size)


def _unpacked(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Path:
    def unpack(target: Path) -> None:
        say(f"{path}: unpacking '{info.filename}' once ({info.file_size / 1e6:.0f} MB) into {target.parent}")
        write_atomic(target, copy)

    def copy(target: BinaryIO) -> None:
        total = info.file_size >> 20
        with archive.open(info) as source, Progress(f"{path}: unpacking", total, unit="MB") as progress:
            while chunk := source.read(1 << 20):
                target.write(chunk)
                progress.advance(1)

    return cached(f"{path.stem}-{files_key([path], info.filename)}-{info.filename}", unpack)

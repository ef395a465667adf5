"""Generated images: the layouts they are published in, and their fraction among the real ones."""

import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from robustvit.core.component import component, settings
from robustvit.core.errors import UserError
from robustvit.core.files import is_file, is_folder
from robustvit.core.numbers import Count, NonNegative, Number, UnitInterval
from robustvit.core.progress import say
from robustvit.data.arrays import ArrayImages, checked_arrays, map_labels, open_arrays
from robustvit.data.base import AnyDataset, Images, Split, Subset, check_labels, known_labels
from robustvit.data.scores import ImageFile, best_of_each_class, read_numbers
from robustvit.data.select import Selection, selected

_BLOCK = 1000
_CHECKED = 256
"""Images checked before training starts; the others' labels are checked as they come."""


@component("data", "generated")
class GeneratedImages:
    """x.npz of Wang et al. (`image`, `label`), x_images.bin of Sehwag et al., or a folder of images-*.npy; mapped."""

    path: Path
    """Of the file or folder."""
    labels: Path | None = None
    """Of a .bin file; default: the .npy file of its folder whose name has labels for images."""
    size: Count = 32
    """Side of the images in a .bin file: its bytes are (N, size, size, 3) and nothing else."""
    num_classes: Count | None = None
    """Where known: a model with another number is refused."""
    select: Selection | None = None
    """Only some classes or images."""
    top_fraction: Annotated[Number, Field(gt=0, le=1)] | None = None
    """Of each class, the images with the highest scores (`robustvit score`); Wang et al. 2023 take 0.2 of 5 million."""
    min_distance: NonNegative | None = None
    """Images nearer to a training image (`robustvit score --reference`) are left out, before `top_fraction`."""
    has_splits: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.chooses and self.select is not None and self.select.images is not None:
            raise ValueError("select.images: top_fraction and min_distance choose images, too; leave one out")

    @property
    def chooses(self) -> bool:
        return self.top_fraction is not None or self.min_distance is not None

    def files(self) -> list[Path]:
        """With the images, in their order."""
        if is_folder(self.path):
            names = sorted(self.path.glob("images-*.npy"))
            if not names:
                raise UserError(f"{self.path}: no generated images; expected images-*.npy and labels-*.npy")
            return names
        if not is_file(self.path):
            raise UserError(f"path: no file or folder '{self.path}' of generated images")
        return [self.path]

    def open_file(self, name: Path) -> ImageFile:
        if is_folder(self.path):
            labels = name.with_name(f"labels-{name.name[7:]}")
            return ImageFile(name, labels, open_arrays(name, labels))
        if name.suffix == ".bin":
            labels = self.labels or name.with_name(f"{name.stem.replace('images', 'labels')}.npy")
            return ImageFile(name, labels, self._raw(labels))
        return ImageFile(name, name if name.suffix == ".npz" else name.with_name("label.npy"), open_arrays(name))

    def open(self, split: Split) -> Images:
        files = [self.open_file(name) for name in self.files()]
        parts = [file.images for file in files]
        sizes = {part.images.shape[1:] for part in parts}
        if len(sizes) > 1:
            raise UserError(f"{self.path}: its files hold images of different sizes: {sorted(sizes)}")
        joined = Joined(parts, str(self.path), self.num_classes)
        return selected(self._chosen(joined, files) if self.chooses else joined, self.select)

    def _chosen(self, joined: "Joined", files: list[ImageFile]) -> Images:
        labels = np.asarray(joined.labels)
        allowed, rules = np.ones(len(labels), bool), []
        if self.min_distance is not None:
            allowed = read_numbers(self.path, files, "distances") >= self.min_distance
            rules.append(f"at least {self.min_distance:g} from a training image")
        rows = np.flatnonzero(allowed)
        if self.top_fraction is not None:
            rows = best_of_each_class(labels, read_numbers(self.path, files, "scores"), self.top_fraction, allowed)
            rules.append(f"best {100 * self.top_fraction:g} % of each class")
        if len(rows) == 0:
            raise UserError(f"{self.path}: no image is {rules[0]}")
        return Subset(joined, torch.from_numpy(rows), f"{joined.title}, {', '.join(rules)}")

    def _raw(self, labels: Path) -> ArrayImages:
        each, total = 3 * self.size**2, self.path.stat().st_size
        if total == 0 or total % each:
            raise UserError(f"{self.path}: {total} bytes are not whole images of {each}; set data.size to their side")
        images = np.memmap(self.path, np.uint8, "r", shape=(total // each, self.size, self.size, 3))
        return checked_arrays(images, map_labels(labels, self.path), self.path, self.num_classes)


@dataclass(frozen=True)
class Joined:
    """Several arrays as one."""

    parts: Sequence[ArrayImages]
    title: str
    num_classes: int | None

    def __post_init__(self) -> None:
        for array in (array for part in self.parts for array in (part.images, part.labels)):
            if isinstance(array, np.memmap):  # read ahead, a batch at random places costs a hundred times its size
                array._mmap.madvise(mmap.MADV_RANDOM)  # type: ignore[attr-defined]

    @cached_property
    def labels(self) -> np.ndarray:
        return self.parts[0].labels if len(self.parts) == 1 else np.concatenate([part.labels for part in self.parts])

    @cached_property
    def _ends(self) -> Tensor:
        return torch.tensor([len(part) for part in self.parts]).cumsum(0)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def take(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        where = torch.searchsorted(self._ends, indices, right=True)
        taken = []
        for number in sorted(set(where.tolist())):
            part = self.parts[number]
            taken.append(part.take(indices[where == number] - self._ends[number] + len(part)))
        images, labels = (torch.cat(part) for part in zip(*taken, strict=True))
        back = where.argsort(stable=True).argsort()
        return images[back], labels[back]


@settings
class Generated:
    """Generated images in every batch."""

    data: AnyDataset
    """The generated images."""
    ratio: UnitInterval = 0.8
    """Their fraction of a batch; 0.8 is the default of Vision Transformers Beat WideResNets on CIFAR."""

    def open(self, real: Images, num_classes: int) -> Images:
        """The images, if they fit the real ones and the model's classes."""
        images = self.data.open("train")
        if len(images) == 0:
            raise UserError(f"{images.title}: holds no images")
        where = f"recipe.generated: {images.title}"
        if images.num_classes not in (None, num_classes):
            raise UserError(f"{where} has {images.num_classes} classes, the model {num_classes}")
        some = torch.linspace(0, len(images) - 1, min(_CHECKED, len(images)), dtype=torch.float64).long()
        pixels, y = images.take(some)
        size, expected = pixels.shape[1:], real.take(torch.tensor([0]))[0].shape[1:]
        if size != expected:
            shapes = f"the shape {tuple(size)}, those of {real.title} {tuple(expected)}"
            raise UserError(f"recipe.generated: the images of {images.title} have {shapes}")
        check_labels(y, num_classes, where)
        _check_known(images, num_classes, where)
        return images


def _check_known(images: Images, num_classes: int, where: str) -> None:
    """Labels that are known without reading pixels: all of a million, of more a thousand blocks of a thousand."""
    blocks = min(_BLOCK, -(-len(images) // _BLOCK))
    starts = torch.linspace(0, max(len(images) - _BLOCK, 0), blocks, dtype=torch.float64)
    seen: set[int] = set()
    for start in starts.long().tolist():
        y = known_labels(images, torch.arange(start, min(start + _BLOCK, len(images))))
        if y is None:
            return
        check_labels(y, num_classes, where)
        seen |= set(y.tolist())
    if len(seen) < num_classes <= len(images) // _BLOCK:
        say(f"warning: {images.title} has images of {len(seen)} classes, the model has {num_classes}")

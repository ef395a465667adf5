"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009): the published batches as torchvision unpacks them, or tar shards."""

from dataclasses import dataclass, replace
from glob import escape
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import torch

from robustvit.core.component import component
from robustvit.core.errors import UserError
from robustvit.core.files import is_file, is_folder
from robustvit.data.base import Images, Split
from robustvit.data.memory import InMemory
from robustvit.data.places import fetch, homes, refuse_missing
from robustvit.data.preprocess import Preprocess
from robustvit.data.safe_pickle import read_batch
from robustvit.data.select import Selection, selected
from robustvit.data.shards import find_shards, open_shards


@dataclass(frozen=True)
class _Layout:
    """The published files: torchvision's folder, its batches, and under which keys labels and their names stand."""

    name: str
    folder: str
    batches: dict[Split, tuple[str, ...]]
    labels: str
    meta: tuple[str, str]
    num_classes: int
    megabytes: int


_CIFAR10 = _Layout(
    "cifar10",
    "cifar-10-batches-py",
    {"train": tuple(f"data_batch_{number}" for number in range(1, 6)), "test": ("test_batch",)},
    "labels",
    ("batches.meta", "label_names"),
    10,
    170,
)
_WHOLE = {"train": 50_000, "test": 10_000}
_CIFAR100 = _Layout(
    "cifar100",
    "cifar-100-python",
    {"train": ("train",), "test": ("test",)},
    "fine_labels",
    ("meta", "fine_label_names"),
    100,
    169,
)


@component("data", "cifar10")
class Cifar10:
    """CIFAR-10: cifar-10-batches-py (torchvision's), or train-*.tar* and test-*.tar*; the result says which."""

    root: Path | None = None
    """The folder that holds them; default: cifar10 below ROBUSTVIT_DATA."""
    download: bool = False
    select: Selection | None = None
    has_splits: ClassVar[bool] = True

    def open(self, split: Split) -> Images:
        return selected(_open(_CIFAR10, split, self.root, self.download), self.select)


@component("data", "cifar100")
class Cifar100:
    """CIFAR-100 with its 100 fine labels: cifar-100-python (torchvision's), or train-*.tar* and test-*.tar*."""

    root: Path | None = None
    """The folder that holds them; default: cifar100 below ROBUSTVIT_DATA."""
    download: bool = False
    select: Selection | None = None
    has_splits: ClassVar[bool] = True

    def open(self, split: Split) -> Images:
        return selected(_open(_CIFAR100, split, self.root, self.download), self.select)


def _open(layout: _Layout, split: Split, root: Path | None, download: bool) -> Images:
    possible = homes(layout.name, root)
    folders = [home if home.name == layout.folder else home / layout.folder for home in possible]
    pattern = f"{possible[0]}/{split}-*.tar*"
    found = next((folder for folder in folders if is_folder(folder)), None)
    shards = find_shards(f"{escape(str(possible[0]))}/{split}-*.tar*")
    if found is None and not shards:
        if not download:
            refuse_missing(layout.name, [*folders, pattern], layout.megabytes)
        fetch(layout.name, folders[0].parent, lambda home: _torchvision(layout)(home, download=True))
        found = folders[0]
    title = f"{layout.name}/{split}"
    if found is None:
        images: Images = open_shards(shards, f"{title} of {pattern}", Preprocess(), layout.num_classes)
    else:
        images = _read(layout, split, found, f"{title} of {found}")
    if len(images) == _WHOLE[split]:
        return images
    return replace(cast(Any, images), title=f"{images.title} (only {len(images):,} of its {_WHOLE[split]:,} images)")


def _read(layout: _Layout, split: Split, folder: Path, title: str) -> InMemory:
    lacking = [name for name in layout.batches[split] if not is_file(folder / name)]
    if lacking:
        raise UserError(f"{folder}: lacks {', '.join(lacking)}; unpack the archive anew, or remove the folder")
    parts = [read_batch(folder / name) for name in layout.batches[split]]
    images, labels = [], []
    for name, part in zip(layout.batches[split], parts, strict=True):
        data, classes = part.get("data"), part.get(layout.labels)
        if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != 3072:
            raise UserError(f"{folder / name}: its 'data' must be uint8 (N, 3072)")
        if not isinstance(classes, list) or len(classes) != len(data):
            raise UserError(f"{folder / name}: its '{layout.labels}' must be a list of {len(data)} labels")
        images.append(data.reshape(-1, 3, 32, 32))
        labels += classes
    return InMemory(
        torch.from_numpy(np.concatenate(images)),
        torch.tensor(labels, dtype=torch.int64),
        title,
        layout.num_classes,
        _class_names(layout, folder),
    )


def _class_names(layout: _Layout, folder: Path) -> list[str] | None:
    """Classes can be chosen by name where the file with the names lies beside the batches."""
    file, key = layout.meta
    return read_batch(folder / file).get(key) if is_file(folder / file) else None


def _torchvision(layout: _Layout) -> Any:
    from torchvision import datasets

    return datasets.CIFAR10 if layout is _CIFAR10 else datasets.CIFAR100

"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009): the published batches as torchvision unpacks them, or tar shards."""

from dataclasses import dataclass, replace
from glob import escape
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import torch

from robustvit.core.component import component, settings
from robustvit.core.errors import UserError
from robustvit.core.files import is_file
from robustvit.data.base import Images, Split
from robustvit.data.memory import InMemory
from robustvit.data.preprocess import Preprocess
from robustvit.data.published import Published
from robustvit.data.safe_pickle import read_batch
from robustvit.data.select import Selection, selected
from robustvit.data.shards import find_shards, open_shards


@dataclass(frozen=True)
class _Layout:
    """The published files: the batches, and under which keys labels and their names are."""

    published: Published
    batches: dict[Split, tuple[str, ...]]
    labels: str
    meta: tuple[str, str]
    num_classes: int


_CIFAR10 = _Layout(
    Published("cifar10", "cifar-10-batches-py", megabytes=170, torchvision_name="CIFAR10"),
    {"train": tuple(f"data_batch_{number}" for number in range(1, 6)), "test": ("test_batch",)},
    "labels",
    ("batches.meta", "label_names"),
    10,
)
_CIFAR100 = _Layout(
    Published("cifar100", "cifar-100-python", megabytes=169, torchvision_name="CIFAR100"),
    {"train": ("train",), "test": ("test",)},
    "fine_labels",
    ("meta", "fine_label_names"),
    100,
)
_WHOLE = {"train": 50_000, "test": 10_000}


@settings
class _Cifar:
    layout: ClassVar[_Layout]
    root: Path | None = None
    """The folder that holds them; default: cifar10 or cifar100 below ROBUSTVIT_DATA."""
    download: bool = False
    select: Selection | None = None
    has_splits: ClassVar[bool] = True

    def open(self, split: Split) -> Images:
        published = self.layout.published
        pattern = f"{published.homes(self.root)[0]}/{split}-*.tar*"
        shards = find_shards(f"{escape(str(published.homes(self.root)[0]))}/{split}-*.tar*")
        if shards:
            folder = published.find(self.root)
        else:
            folder = published.find_or_fetch(self.root, self.download, [pattern])
        title = f"{published.name}/{split}"
        if folder is None:
            images: Images = open_shards(shards, f"{title} of {pattern}", Preprocess(), self.layout.num_classes)
        else:
            images = _read(self.layout, split, folder, f"{title} of {folder}")
        if len(images) != _WHOLE[split]:
            note = f"only {len(images):,} of its {_WHOLE[split]:,} images"
            images = replace(cast(Any, images), title=f"{images.title} ({note})")
        return selected(images, self.select)


@component("data", "cifar10")
class Cifar10(_Cifar):
    """CIFAR-10: cifar-10-batches-py (torchvision's), or train-*.tar* and test-*.tar*; the result says which."""

    layout: ClassVar[_Layout] = _CIFAR10


@component("data", "cifar100")
class Cifar100(_Cifar):
    """CIFAR-100 with its 100 fine labels: cifar-100-python (torchvision's), or train-*.tar* and test-*.tar*."""

    layout: ClassVar[_Layout] = _CIFAR100


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
    """Classes can be chosen by name where the file with the names is in the same folder."""
    file, key = layout.meta
    return read_batch(folder / file).get(key) if is_file(folder / file) else None

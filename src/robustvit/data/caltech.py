"""Caltech-101 (Fei-Fei et al. 2004): 9,144 photographs of many sizes, in 101 classes."""

from dataclasses import field
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from robustvit.core.component import component
from robustvit.core.errors import UserError
from robustvit.core.numbers import Count
from robustvit.core.streams import seeded_order
from robustvit.data.base import Images, Split
from robustvit.data.folder import Files, list_classes
from robustvit.data.pictures import Pictures
from robustvit.data.preprocess import Preprocess
from robustvit.data.published import Published
from robustvit.data.select import Selection, selected

_CALTECH = Published("caltech101", "caltech101/101_ObjectCategories", megabytes=137, torchvision_name="Caltech101")
_NO_CLASS = "BACKGROUND_Google"


@component("data", "caltech101")
class Caltech101:
    """Caltech-101 as torchvision unpacks it; published without a split: some of each class are drawn for training."""

    root: Path | None = None
    """The folder that holds caltech101/101_ObjectCategories; default: caltech101 below ROBUSTVIT_DATA."""
    download: bool = False
    train_per_class: Count = 30
    """Images of each class drawn, once and for all, for training (30 is usual); the others are for testing."""
    preprocess: Preprocess = field(default_factory=Preprocess)
    select: Selection | None = None
    has_splits: ClassVar[bool] = True

    def open(self, split: Split) -> Images:
        folder = _CALTECH.find_or_fetch(self.root, self.download)
        names, labels, classes = list_classes(folder, without=[_NO_CLASS])
        if not names:
            raise UserError(f"{folder}: holds no images; expected CLASS/image_0001.jpg below it")
        rows = self._rows(torch.tensor(labels), classes, split)
        title = f"caltech101/{split} of {folder}, {self.train_per_class} of each class for training"
        if len(rows) == 0:
            raise UserError(f"{title}: holds no images")
        images = Pictures(
            Files(folder, [names[row] for row in rows]),
            torch.tensor([labels[row] for row in rows]),
            self.preprocess,
            title,
            len(classes),
            tuple(classes),
        )
        return selected(images, self.select)

    def _rows(self, labels: Tensor, classes: list[str], split: Split) -> list[int]:
        chosen = torch.zeros(len(labels), dtype=torch.bool)
        for label, name in enumerate(classes):
            members = (labels == label).nonzero().squeeze(1)
            chosen[members[seeded_order(len(members), 0, "caltech101", name)[: self.train_per_class]]] = True
        return (chosen == (split == "train")).nonzero().squeeze(1).tolist()

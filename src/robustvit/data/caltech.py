"""Caltech-101 (Fei-Fei et al. 2004): 9,144 photographs of many sizes, in 101 classes."""

from dataclasses import field

import torch

from robustvit.core.component import component
from robustvit.core.errors import UserError
from robustvit.core.numbers import Count
from robustvit.core.streams import seeded_order
from robustvit.data.base import Images, Split
from robustvit.data.folder import Files, list_classes
from robustvit.data.pictures import Pictures
from robustvit.data.preprocess import Preprocess
from robustvit.data.published import Published
from robustvit.data.select import selected

_NO_CLASS = "BACKGROUND_Google"


@component("data", "caltech101")
class Caltech101(Published):
    """Caltech-101 as torchvision unpacks it; published without a split: some of each class are drawn for training."""

    train_per_class: Count = 30
    """Images of each class drawn, once and for all, for training (30 is usual); the others are for testing."""
    preprocess: Preprocess = field(default_factory=Preprocess)
    folder, megabytes, torchvision_name = "caltech101/101_ObjectCategories", 137, "Caltech101"

    def open(self, split: Split) -> Images:
        folder = self.find_or_fetch()
        names, numbers, classes = list_classes(folder, without=[_NO_CLASS])
        if not names:
            raise UserError(f"{folder}: holds no images; expected CLASS/image_0001.jpg below it")
        labels = torch.tensor(numbers)
        trained = torch.zeros(len(labels), dtype=torch.bool)
        for label, name in enumerate(classes):
            members = (labels == label).nonzero().squeeze(1)
            trained[members[seeded_order(len(members), 0, "caltech101", name)[: self.train_per_class]]] = True
        rows = (trained == (split == "train")).nonzero().squeeze(1)
        title = f"caltech101/{split} of {folder}, {self.train_per_class} of each class for training"
        if len(rows) == 0:
            raise UserError(f"{title}: holds no images")
        files = Files(folder, [names[row] for row in rows.tolist()])
        images = Pictures(files, labels[rows], self.preprocess, title, len(classes), tuple(classes))
        return selected(images, self.select)

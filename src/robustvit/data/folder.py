"""A folder of pictures, one sub-folder a class, as torchvision's ImageFolder lays it out: ImageNet, for one."""

import os
from collections.abc import Sequence
from pathlib import Path

import torch

from robustvit.core.component import component
from robustvit.core.errors import UserError
from robustvit.core.files import is_folder
from robustvit.core.progress import Progress
from robustvit.data.base import SPLIT_NAMES, Images, Split
from robustvit.data.labels import Numbering, class_list, class_numbers
from robustvit.data.pictures import SUFFIXES, Files, Pictures
from robustvit.data.preprocess import Preprocess
from robustvit.data.select import Selection, selected


@component("data", "folder")
class Folder:
    """`path/CLASS/*.png`, or `path/{train,val,test}/CLASS/*.png`; classes are numbered in sorted order."""

    path: Path
    """With a folder for each class."""
    preprocess: Preprocess = Preprocess()
    """How pictures are brought to one size."""
    labels: Numbering | None = None
    """`imagenet1k`: folders are synsets or numbers from 0 to 999, labels their numbers among the 1,000 classes."""
    select: Selection | None = None
    """Only some classes or images."""

    @property
    def has_splits(self) -> bool:
        return any((self.path / name).is_dir() for names in SPLIT_NAMES.values() for name in names)

    def open(self, split: Split) -> Images:
        if not is_folder(self.path):
            raise UserError(f"path: no folder '{self.path}'; expected CLASS/*.png below it")
        root = next((self.path / name for name in SPLIT_NAMES[split] if (self.path / name).is_dir()), None)
        if root is None:
            if self.has_splits:
                raise UserError(f"{self.path}: has no {' or '.join(SPLIT_NAMES[split])} folder for the {split} split")
            root = self.path
        names, labels, classes = list_classes(root)
        if not names:
            tars = f"; for its tar shards: {root}/*.tar*" if any(root.glob("*.tar*")) else ""
            raise UserError(f"{root}: holds no images; expected CLASS/*.png or .jpg below it{tars}")
        files, y = Files(root, names), torch.tensor(labels)
        if self.labels is not None:
            y, classes = torch.tensor(class_numbers(classes, self.labels, str(root)))[y], list(class_list(self.labels))
        return selected(Pictures(files, y, self.preprocess, str(root), len(classes), tuple(classes)), self.select)


def list_classes(root: Path, without: Sequence[str] = ()) -> tuple[list[str], list[int], list[str]]:
    """Names such as CLASS/x.png, their labels, and the classes."""
    with os.scandir(root) as entries:
        folders = (entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
        classes = sorted(set(folders) - set(without))
    names, labels = list[str](), list[int]()
    with Progress(f"{root}: listing", len(classes), unit="classes") as progress:
        for label, name in enumerate(classes):
            files = sorted(file for file in os.listdir(root / name) if file.lower().endswith(SUFFIXES))
            names += [f"{name}/{file}" for file in files]
            labels += [label] * len(files)
            progress.advance(1)
    return names, labels, classes

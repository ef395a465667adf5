"""Published data sets: those that torchvision unpacks, from disk or downloaded if asked for, and the digits."""

import contextlib
import os
import sys
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import ClassVar, Literal, cast

import numpy as np
import torch

from robustvit.core.component import component, settings
from robustvit.core.errors import UserError, first_line
from robustvit.core.files import is_file, is_folder, locked
from robustvit.core.numbers import Count
from robustvit.core.streams import seeded_order, seeded_subset
from robustvit.data.arrays import InMemory
from robustvit.data.base import Images, Split
from robustvit.data.folder import list_classes
from robustvit.data.pictures import Files, Pictures
from robustvit.data.preprocess import Preprocess
from robustvit.data.select import Selection, selected


def data_folder() -> Path:
    """Where data sets are looked for by their names."""
    return Path(os.environ.get("ROBUSTVIT_DATA") or "data")


_FLOWERS_SETS = {"train": ("trnid",), "train+val": ("trnid", "valid"), "test": ("tstid",)}


@component("data", "digits")
class Digits:
    """Handwritten digits inside scikit-learn (Alpaydin and Kaynak 1998): 1,797 gray images of 8x8, 360 for testing."""

    select: Selection | None = None
    """Only some classes or images."""
    has_splits: ClassVar[bool] = True

    def open(self, split: Split) -> Images:
        from sklearn.datasets import load_digits

        bundle = load_digits()
        gray = torch.from_numpy(bundle.images * (255 / 16)).round().to(torch.uint8)  # (1797, 8, 8)
        labels = torch.from_numpy(bundle.target).long()
        tested = torch.zeros(len(labels), dtype=torch.bool)
        tested[seeded_subset(len(labels), 360, 0, "digits/test")] = True
        chosen = tested == (split == "test")
        pixels = gray[chosen].unsqueeze(1).expand(-1, 3, -1, -1)
        return selected(InMemory(pixels, labels[chosen], f"digits/{split}", 10), self.select)


@settings
class Published:
    """Abstract: the settings and the search that they have in common."""

    root: Path | None = None
    """The folder that holds its files; default: its name below ROBUSTVIT_DATA."""
    download: bool = False
    """Fetch the files if they are missing."""
    select: Selection | None = None
    """Only some classes or images."""
    has_splits: ClassVar[bool] = True
    name: ClassVar[str]
    folder: ClassVar[str]
    """Where torchvision puts its files, below the folder that it downloads into."""
    megabytes: ClassVar[int]
    torchvision_name: ClassVar[str]

    def homes(self) -> list[Path]:
        """Folders that may hold it: the one given, else its own below ROBUSTVIT_DATA (default: data) and that."""
        base = data_folder()
        return [base / self.name, base] if self.root is None else [self.root]

    def candidates(self) -> list[Path]:
        inner = Path(self.folder).name
        places = [[home] if home.name == inner else [home / self.folder, home / inner] for home in self.homes()]
        return list(dict.fromkeys(chain(*places)))

    def find(self) -> Path | None:
        return next(filter(is_folder, self.candidates()), None)

    def find_or_fetch(self, also: Sequence[str] = ()) -> Path:
        """The folder with its files; `also`: other places that were searched, for the message."""
        folder = self.find()
        if folder is not None:
            return folder
        first, *others = self.candidates()
        if not self.download:
            there = ", ".join(f"'{place}'" for place in (first, *others, *also))
            download = f"have torchvision download it ({self.megabytes} MB): data.download=true"
            advice = f"put it there, name another folder with data.root or ROBUSTVIT_DATA, or {download}"
            raise UserError(f"{self.name}: not there (looked for {there}); {advice}")
        from torchvision import datasets

        home = first.parents[len(Path(self.folder).parts) - 1]
        with (
            locked(home / ".download.lock", f"downloading {self.name}", wait=True),
            contextlib.redirect_stdout(sys.stderr),  # results alone go to standard output
        ):
            try:
                getattr(datasets, self.torchvision_name)(home, download=True)  # which checks the archives' checksums
            except (OSError, RuntimeError, ImportError) as error:
                raise UserError(f"{self.name}: can't be downloaded into '{home}' ({first_line(error)})") from error
        return first


@component("data", "caltech101")
class Caltech101(Published):
    """Caltech-101 (Fei-Fei et al. 2004), 9,144 photographs in 101 classes, some of each drawn for training."""

    train_per_class: Count = 30
    """Images of each class drawn, once and for all, for training (30 is usual, no split is published)."""
    preprocess: Preprocess = Preprocess()
    """How pictures are brought to one size."""
    folder, megabytes, torchvision_name = "caltech101/101_ObjectCategories", 137, "Caltech101"

    def open(self, split: Split) -> Images:
        folder = self.find_or_fetch()
        names, numbers, classes = list_classes(folder, without=["BACKGROUND_Google"])
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


@component("data", "flowers102")
class Flowers102(Published):
    """Oxford Flowers-102 (Nilsback and Zisserman 2008), 8,189 photographs in 102 classes, with its published split."""

    train_on: Literal["train", "train+val"] = "train+val"
    """The 1,020 training images, or these and the 1,020 for validation: then hold some out to validate."""
    preprocess: Preprocess = Preprocess()
    """How pictures are brought to one size."""
    folder, megabytes, torchvision_name = "flowers-102", 345, "Flowers102"

    def open(self, split: Split) -> Images:
        folder = self.find_or_fetch()
        part = self.train_on if split == "train" else "test"
        labels = _numbers(folder / "imagelabels.mat", "labels") - 1
        numbers = np.concatenate([_numbers(folder / "setid.mat", name) for name in _FLOWERS_SETS[part]])
        if numbers.min() < 1 or numbers.max() > len(labels):
            raise UserError(f"{folder}: setid.mat speaks of images that imagelabels.mat has no label for")
        files = Files(folder / "jpg", [f"image_{number:05d}.jpg" for number in numbers])
        title = f"flowers102/{part} of {folder}"
        images = Pictures(files, torch.from_numpy(labels[numbers - 1]), self.preprocess, title, 102)
        return selected(images, self.select)


def _numbers(path: Path, name: str) -> np.ndarray:
    from scipy.io import loadmat

    if not is_file(path):
        raise UserError(f"{path}: not there; unpack the archive anew, or remove the folder")
    try:
        return cast(np.ndarray, loadmat(path)[name].reshape(-1).astype(np.int64))
    except Exception as error:  # a broken file raises whatever its reader runs into
        raise UserError(f"{path}: no MATLAB file with '{name}' ({first_line(error)})") from None

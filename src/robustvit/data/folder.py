"""A folder of pictures, one sub-folder a class, as torchvision's ImageFolder lays it out."""

from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from robustvit.core.component import component
from robustvit.core.errors import UserError
from robustvit.core.files import is_folder
from robustvit.data.base import Split
from robustvit.data.preprocess import Preprocess

_PICTURES = (".jpg", ".jpeg", ".png", ".bmp", ".webp")
_SPLIT_NAMES = {"train": ("train",), "test": ("test", "val", "validation")}


@component("data", "folder")
class Folder:
    """`path/CLASS/*.png`, or `path/{train,val,test}/CLASS/*.png`; classes are numbered in sorted order."""

    path: Path
    preprocess: Preprocess = field(default_factory=Preprocess)

    @property
    def has_splits(self) -> bool:
        return any((self.path / name).is_dir() for names in _SPLIT_NAMES.values() for name in names)

    def open(self, split: Split) -> "FolderImages":
        if not is_folder(self.path):
            raise UserError(f"data.path: no folder '{self.path}'; expected CLASS/*.png below it")
        root = next((self.path / name for name in _SPLIT_NAMES[split] if (self.path / name).is_dir()), None)
        if root is None:
            if self.has_splits:
                raise UserError(f"{self.path}: has no {' or '.join(_SPLIT_NAMES[split])} folder for the {split} split")
            root = self.path
        classes = sorted(entry.name for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith("."))
        found = [
            (file, label)
            for label, name in enumerate(classes)
            for file in sorted((root / name).iterdir())
            if file.suffix.lower() in _PICTURES
        ]
        if not found:
            raise UserError(f"{root}: holds no images; expected CLASS/*.png or .jpg below it")
        files, labels = zip(*found, strict=True)
        return FolderImages(list(files), torch.tensor(labels), self.preprocess, str(root), len(classes))


@dataclass(frozen=True)
class FolderImages:
    files: list[Path]
    labels: Tensor
    preprocess: Preprocess
    title: str
    num_classes: int | None

    def __len__(self) -> int:
        return len(self.files)

    def take(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        images = [self._read(self.files[int(index)]) for index in indices]
        if len({image.shape for image in images}) > 1:
            raise UserError(f"{self.title}: its images differ in size; set data.preprocess: {{how: crop, size: 224}}")
        return torch.stack(images), self.labels[indices]

    def describe(self, indices: Tensor) -> list[str]:
        """A line for each file: cheaper than its pixels, and as telling."""
        files = [(self.files[int(index)], int(self.labels[index])) for index in indices]
        states = [(file.parent.name, file.name, file.stat(), label) for file, label in files]
        return [
            f"{a}/{b} {state.st_size} {state.st_mtime_ns} {label} {self.preprocess}" for a, b, state, label in states
        ]

    def _read(self, file: Path) -> Tensor:
        from PIL import Image, UnidentifiedImageError

        try:
            with Image.open(file) as picture:
                return self.preprocess(picture)
        except (UnidentifiedImageError, OSError, Image.DecompressionBombError) as error:
            raise UserError(f"{file}: not a readable picture ({error})") from None

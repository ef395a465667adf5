"""Oxford Flowers-102 (Nilsback and Zisserman 2008): 8,189 photographs of many sizes, in 102 classes."""

from dataclasses import field
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from robustvit.core.component import component
from robustvit.core.errors import UserError, first_line
from robustvit.core.files import is_file
from robustvit.data.base import Images, Split
from robustvit.data.folder import Files
from robustvit.data.pictures import Pictures
from robustvit.data.preprocess import Preprocess
from robustvit.data.published import Published
from robustvit.data.select import selected

_SETS = {"train": ("trnid",), "train+val": ("trnid", "valid"), "test": ("tstid",)}


@component("data", "flowers102")
class Flowers102(Published):
    """Oxford Flowers-102 as torchvision unpacks it, with its published split."""

    train_on: Literal["train", "train+val"] = "train+val"
    """The 1,020 training images, or these and the 1,020 for validation: then hold some out to validate."""
    preprocess: Preprocess = field(default_factory=Preprocess)
    folder, megabytes, torchvision_name = "flowers-102", 345, "Flowers102"

    def open(self, split: Split) -> Images:
        folder = self.find_or_fetch()
        part = self.train_on if split == "train" else "test"
        labels = _numbers(folder / "imagelabels.mat", "labels") - 1
        numbers = np.concatenate([_numbers(folder / "setid.mat", name) for name in _SETS[part]])
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
        numbers: np.ndarray = loadmat(path)[name].reshape(-1).astype(np.int64)
    except Exception as error:  # a broken file raises whatever its reader runs into
        raise UserError(f"{path}: no MATLAB file with '{name}' ({first_line(error)})") from None
    return numbers

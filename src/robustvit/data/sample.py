"""Photographs inside the package: real images to try things on where no data set has been downloaded."""

from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np
import torch
from pydantic import Field, TypeAdapter
from typing_extensions import TypedDict

from robustvit.core.component import component
from robustvit.core.errors import UserError
from robustvit.core.readers import conforming, read_bytes, read_yaml, unreadable
from robustvit.data.arrays import InMemory
from robustvit.data.base import Images, Split
from robustvit.data.cifar import records_sha256
from robustvit.data.pictures import decode
from robustvit.data.preprocess import Preprocess
from robustvit.data.select import Selection, selected

PICTURE = Path(__file__).with_name("cifar10_sample.png")
_EACH, _SIDE = 10, 32
_REMEDY = "install robustvit anew"


class _About(TypedDict):
    """Of cifar10_sample.yaml, what is read."""

    sha256: str
    classes: dict[str, Annotated[list[int], Field(min_length=_EACH, max_length=_EACH)]]
    """By the name of the class, positions in the test set."""


@component("data", "cifar10_sample")
class Cifar10Sample:
    """100 photographs inside robustvit: the first ten CIFAR-10 test images of each class (Krizhevsky 2009)."""

    select: Selection | None = None
    """Only some classes or images."""
    has_splits: ClassVar[bool] = True
    name: ClassVar[str]

    def open(self, split: Split) -> Images:
        if split != "test":
            raise UserError(f"{self.name}: has test images only, none for the {split} split; train on cifar10 instead")
        path = PICTURE.with_suffix(".yaml")
        about = conforming(read_yaml(path), TypeAdapter(_About), path, "description of its images", _REMEDY)
        classes = about["classes"]
        pixels, labels = _cut(len(classes)), torch.arange(len(classes)).repeat_interleave(_EACH)
        names = np.array([f"{name}/{place:04d}".encode() for name, places in classes.items() for place in places])
        images = InMemory(pixels, labels, f"{self.name}/{split}", len(classes), tuple(classes), names)
        if records_sha256(images) != about["sha256"]:
            raise unreadable(PICTURE, f"not the pixels that {path.name} has the checksum of", _REMEDY)
        return selected(images, self.select)


def _cut(rows: int) -> torch.Tensor:
    """(N, 3, 32, 32) out of the one picture, row by row."""
    (picture,) = decode(1, lambda _: read_bytes(PICTURE), lambda _: str(PICTURE), lambda whole, _: Preprocess()(whole))
    shape = (rows * _SIDE, _EACH * _SIDE, 3)
    if picture.shape != shape:
        raise unreadable(PICTURE, f"a picture of {picture.shape}, where {shape} is expected", _REMEDY)
    cut = picture.reshape(rows, _SIDE, _EACH, _SIDE, 3).transpose(0, 2, 4, 1, 3)
    return torch.from_numpy(np.ascontiguousarray(cut).reshape(-1, 3, _SIDE, _SIDE))

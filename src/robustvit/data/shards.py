"""Pictures in tar shards: indexed once; small or zipped sets are decoded once into an array that is mapped."""

import math
from collections.abc import Sequence
from dataclasses import replace
from glob import glob
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from pydantic import TypeAdapter, model_validator

from robustvit.core.binary import is_zipped, map_array
from robustvit.core.component import component
from robustvit.core.errors import UserError
from robustvit.core.files import is_file, write_atomic
from robustvit.core.numbers import Count
from robustvit.core.progress import Progress, say
from robustvit.core.readers import read_json
from robustvit.data.arrays import ArrayImages
from robustvit.data.base import SPLIT_NAMES, Images, Split
from robustvit.data.cache import cached, files_key
from robustvit.data.labels import Numbering, class_list, class_numbers
from robustvit.data.pictures import Pictures, TarMembers, check_index, decode, index_checksum, index_shards, same_size
from robustvit.data.preprocess import Preprocess
from robustvit.data.select import Selection, selected

SMALL = 1 << 30
"""Bytes of pixels up to which decoding once and for all is worth its space in the cache."""
_AT_ONCE = 1024
"""Pictures in memory while decoding."""
_REMEDY = "remove it to have it made anew"


@component("data", "shards")
class Shards:
    """Tar archives in WebDataset's layout (x.jpg or x.png with x.cls), such as `imagenet/{split}-*.tar`.

    `{split}` becomes train or test (val where there is no test); without it, every split is the same files.
    `classes.json` there may list the names.
    """

    path: str
    """Pattern of the archives, such as train-*.tar."""
    preprocess: Preprocess = Preprocess()
    """How pictures are brought to one size."""
    num_classes: Count | None = None
    """Default: as many as classes.json lists, else unknown."""
    labels: Numbering | None = None
    """`imagenet1k`: classes.json lists synsets, and labels become their numbers among the 1,000 classes; without the
    file, labels have these numbers already."""
    select: Selection | None = None
    """Only some classes or images."""

    @property
    def has_splits(self) -> bool:
        return "{split}" in self.path

    def open(self, split: Split) -> Images:
        shards, pattern = find_split(self.path, split)
        if not shards:
            raise UserError(f"path: no tar shards '{pattern}'")
        images = open_shards(shards, pattern, self.preprocess, self.num_classes)
        return selected(images if self.labels is None else _renumbered(images, self.labels), self.select)

    @model_validator(mode="after")
    def _check(self) -> "Shards":
        if self.labels is not None and self.num_classes not in (None, len(class_list(self.labels))):
            raise ValueError(f"num_classes: {self.labels} has {len(class_list(self.labels))}; leave it out")
        return self


def _renumbered(images: ArrayImages | Pictures, numbering: Numbering) -> Images:
    """With labels in the numbering instead of that of classes.json."""
    classes, labels, names = class_list(numbering), np.asarray(images.labels), images.class_names
    numbers = range(len(classes)) if names is None else class_numbers(names, numbering, f"{images.title}: classes.json")
    if len(labels) and labels.max() >= len(numbers):
        of = numbering if names is None else "classes.json"
        raise UserError(f"{images.title}: label {labels.max()} is outside the {len(numbers)} classes of {of}")
    new = np.array(numbers)[labels]
    same: dict[str, Any] = {"num_classes": len(classes), "class_names": classes}
    if isinstance(images, ArrayImages):
        return replace(images, labels=new, **same)
    return replace(images, labels=torch.from_numpy(new), **same)


def is_shards(path: str) -> bool:
    """Whether a path means tar archives, by its name."""
    return ".tar" in Path(path).name or path.endswith(".tgz")


def find_shards(pattern: str) -> list[Path]:
    """The files of a glob in the order of their names; what isn't a tar archive by its name is left out."""
    paths = (Path(name) for name in glob(pattern) if name.endswith((".tar", ".tar.gz", ".tgz")))
    return sorted(path for path in paths if is_file(path))


def find_split(path: str, split: Split) -> tuple[list[Path], str]:
    """The shards of the first name of the split that there are any of, and their pattern."""
    patterns = [path.replace("{split}", name) for name in SPLIT_NAMES[split]]
    found = ((find_shards(pattern), pattern) for pattern in patterns)
    return next(((shards, pattern) for shards, pattern in found if shards), ([], patterns[0]))


def open_shards(
    shards: Sequence[Path], title: str, preprocess: Preprocess, num_classes: int | None
) -> ArrayImages | Pictures:
    """Through the cache: the first time takes a walk over the archives, later ones none."""
    stem = f"{shards[0].parent.resolve().name}-{shards[0].name.partition('.')[0]}"
    key = files_key(shards, "with a checksum")
    kept = cached(f"{stem}-{key}-index.npy", lambda path: _write_index(path, shards, title))
    index = check_index(map_array(kept, remedy=_REMEDY), shards, kept)
    if len(index) == 0:
        raise UserError(f"{title}: holds no images; expected x.jpg or x.png with x.cls in each archive")
    class_names = _class_names(shards[0].parent)
    if num_classes is None and class_names is not None:
        num_classes = len(class_names)
    members = TarMembers(shards, index)
    (first,) = _decoded([next(members.read_all())], 0, members, preprocess)
    shape = (len(index), *first.shape)  # all have the size of the first
    as_they_are = preprocess.how == "none"  # else training crops come out of the whole pictures
    if any(is_zipped(shard) for shard in shards) or (as_they_are and math.prod(shape) <= SMALL):
        name = f"{stem}-{files_key(shards, preprocess)}-pixels.npy"
        kept = cached(name, lambda path: _write_pixels(path, members, shape, title, preprocess))
        pixels = map_array(kept, remedy=_REMEDY)
        if pixels.shape != shape or pixels.dtype != np.uint8:
            raise UserError(f"{kept}: holds {pixels.dtype} {pixels.shape}, not the pixels of {title}; {_REMEDY}")
        return ArrayImages(pixels, index["label"], title, num_classes, class_names, index["name"])
    labels = torch.from_numpy(np.ascontiguousarray(index["label"]))
    return Pictures(members, labels, preprocess, title, num_classes, class_names)


def _class_names(folder: Path) -> tuple[str, ...] | None:
    path = folder / "classes.json"
    if not is_file(path):
        return None
    return tuple(read_json(path, TypeAdapter(list[str]), "list of the classes' names in the order of their numbers"))


def _decoded(some: Sequence[bytes], first: int, members: TarMembers, preprocess: Preprocess) -> list[np.ndarray]:
    place = members.place
    return decode(len(some), some.__getitem__, lambda row: place(first + row), lambda picture, _: preprocess(picture))


def _write_index(path: Path, shards: Sequence[Path], title: str) -> None:
    index = index_shards(shards, title)

    def write(file: BinaryIO) -> None:
        np.lib.format.write_array(file, index, allow_pickle=False)
        file.write(index_checksum(index))

    write_atomic(path, write)


def _write_pixels(path: Path, members: TarMembers, shape: tuple[int, ...], title: str, preprocess: Preprocess) -> None:
    say(f"{title}: decoding {shape[0]} images once ({math.prod(shape) / 1e6:.0f} MB) into {path.parent}")

    def write(file: BinaryIO) -> None:
        np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
        pictures = members.read_all()
        with Progress(f"{title}: decoding", shape[0]) as progress:
            while some := list(islice(pictures, _AT_ONCE)):
                arrays = _decoded(some, progress.count, members, preprocess)
                same_size([shape[1:], *(array.shape for array in arrays)], title)
                file.write(np.stack(arrays).tobytes())
                progress.advance(len(some))

    write_atomic(path, write)

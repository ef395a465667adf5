"""Cue-conflict stimuli (Geirhos et al. 2019): pictures with the shape of one category and the texture of another.

They are called SHAPEn-TEXTUREn, such as `cat7-elephant1.png`, and lie in a folder, below a folder for each category, or
in a tar archive.
"""

import os
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import ClassVar, Literal, TypeVar

import torch
from pydantic import TypeAdapter
from torch import Tensor
from typing_extensions import TypedDict

from robustvit.core.binary import is_zipped
from robustvit.core.component import settings
from robustvit.core.errors import UserError, shortened
from robustvit.core.files import is_file, is_folder
from robustvit.core.readers import conforming, read_yaml
from robustvit.data.base import Split
from robustvit.data.labels import LISTS, class_list
from robustvit.data.pictures import SUFFIXES, Files, Pictures, TarMembers, index_shards
from robustvit.data.preprocess import Preprocess
from robustvit.data.shards import is_shards

T = TypeVar("T")

_STIMULUS = re.compile(r"([a-z]+)\d+-([a-z]+)\d+")


class Decisions(TypedDict):
    """For shape and for texture, by the category of the shape, of stimuli whose two categories differ."""

    shape: list[int]
    texture: list[int]


ClassNumbers = Literal["imagenet1k", "cifar10"]


@cache
def category_classes(labels: ClassNumbers = "imagenet1k") -> dict[str, tuple[int, ...]]:
    """Categories in the order of the alphabet with their classes: all 16 among ImageNet's 1,000, or CIFAR-10's 7."""
    key = "categories" if labels == "imagenet1k" else labels
    return _read("sixteen-categories", key, TypeAdapter(dict[str, tuple[int, ...]]))


@cache
def published_decisions() -> dict[str, Decisions]:
    """Of people and networks, as Geirhos et al. published them."""
    return _read("cue-conflict-decisions", "decisions", TypeAdapter(dict[str, Decisions]))


def _read(name: str, key: str, schema: TypeAdapter[T]) -> T:
    path = LISTS / f"{name}.yaml"
    return conforming(read_yaml(path).get(key), schema, path, f"list of {key}", "install robustvit anew")


@settings
class CueConflict:
    """Labels are the numbers of the shapes' categories, of pictures both of whose categories the classes have."""

    path: Path
    preprocess: Preprocess = Preprocess()
    labels: ClassNumbers = "imagenet1k"
    has_splits: ClassVar[bool] = False

    def open(self, split: Split) -> Pictures:
        title = str(self.path)
        store = self._archive() if is_shards(title) else self._folder()
        names = [_text(name) for name in store.names]
        cues = [cues_of(name, title) for name in names]
        if not names:
            raise UserError(
                f"{title}: holds no images; expected SHAPEn-TEXTUREn.png or .jpg in it, or one folder below"
            )
        stems = [_stem(name) for name in names]
        if len(set(stems)) < len(stems):
            twice = next(stem for stem in stems if stems.count(stem) > 1)
            raise UserError(f"{title}: holds the stimulus '{twice}' {stems.count(twice)} times")
        categories, every = tuple(category_classes(self.labels)), tuple(category_classes())
        chosen = [place for place, pair in enumerate(cues) if {every[cue] for cue in pair} <= set(categories)]
        if not chosen:
            raise UserError(f"{title}: none of its {len(cues)} stimuli has two of {', '.join(categories)}")
        shapes = torch.tensor([categories.index(every[cues[place][0]]) for place in chosen])
        needed = len(class_list("imagenet1k")) if self.labels == "imagenet1k" else 10  # that the model must have
        return Pictures(_chosen(store, chosen), shapes, self.preprocess, title, needed, categories)

    def _folder(self) -> Files:
        if not is_folder(self.path):
            raise UserError(f"path: no folder or tar archive '{self.path}' with cue-conflict stimuli")
        folders = sorted(entry.name for entry in os.scandir(self.path) if entry.is_dir() and entry.name[0] != ".")
        places = ["", *(f"{name}/" for name in folders)]
        names = [place + name for place in places for name in sorted(os.listdir(self.path / place))]
        return Files(self.path, [name for name in names if name.lower().endswith(SUFFIXES)])

    def _archive(self) -> TarMembers:
        if not is_file(self.path):
            raise UserError(f"path: no folder or tar archive '{self.path}' with cue-conflict stimuli")
        if is_zipped(self.path):
            raise UserError(f"{self.path}: is compressed; unpack it with gunzip first")
        title = str(self.path)
        return TarMembers([self.path], index_shards([self.path], title, lambda name: cues_of(name, title)[0]))


def _chosen(store: Files | TarMembers, places: list[int]) -> Files | TarMembers:
    if isinstance(store, Files):
        return replace(store, names=[store.names[place] for place in places])
    return replace(store, index=store.index[places])


def texture_labels(images: Pictures) -> Tensor:
    """(N,) numbers of the textures' categories among the images' own."""
    every, own = tuple(category_classes()), list(images.class_names or ())
    return torch.tensor([own.index(every[cues_of(_text(name), images.title)[1]]) for name in images.names])


def cues_of(name: str, where: str) -> tuple[int, int]:
    """The numbers of the shape's and the texture's category."""
    numbers = _numbers()
    match = _STIMULUS.fullmatch(_stem(name))
    if match is None or not {match[1], match[2]} <= set(numbers):
        expected = f"expected SHAPEn-TEXTUREn of the categories {', '.join(numbers)}"
        raise UserError(f"{where}: '{shortened(name, 60)}' is no cue-conflict stimulus; {expected}")
    return numbers[match[1]], numbers[match[2]]


@cache
def _numbers() -> dict[str, int]:
    return {category: number for number, category in enumerate(category_classes())}


def _stem(name: str) -> str:
    return name.rpartition("/")[2].partition(".")[0]


def _text(name: bytes | str) -> str:
    return os.fsdecode(name)

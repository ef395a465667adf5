"""Labels in the numbering of ImageNet's 1,000 classes, whichever of them a data set has and whatever it calls them."""

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Literal

import torch

from robustvit.core.errors import UserError, shortened
from robustvit.core.readers import read_text
from robustvit.data.base import Images, known_labels

Numbering = Literal["imagenet1k"]
"""Whose numbers labels have."""

SYNSET = re.compile(r"(n\d{8})(?:[_\s](.*))?")
"""A WordNet synset, and what may follow it in a name."""
LISTS = Path(__file__).with_name("lists")
"""Published lists, each with its source."""


@cache
def class_list(name: str) -> tuple[str, ...]:
    """The synsets of `imagenet1k`, `imagenet-r` or `imagenet-a`, as published."""
    lines = read_text(LISTS / f"{name}.txt").splitlines()
    return tuple(line for line in lines if not line.startswith("#"))


def class_numbers(names: Sequence[str], numbering: Numbering, where: str) -> list[int]:
    """The number of each class by its name: a synset, or the number itself, as ImageNetV2 has it."""
    synsets = class_list(numbering)
    places = {synset: place for place, synset in enumerate(synsets)}
    places |= {str(place): place for place in range(len(synsets))}
    numbers: dict[int, str] = {}
    for name in names:
        synset = SYNSET.fullmatch(name)
        number = places.get(synset[1] if synset else name)
        if number is None:
            expected = f"expected a synset such as {synsets[0]}, or a number from 0 to {len(synsets) - 1}"
            raise UserError(f"{where}: '{shortened(name, 60)}' is no class of {numbering}; {expected}")
        if number in numbers:
            raise UserError(f"{where}: '{numbers[number]}' and '{name}' are both class {number} of {numbering}")
        numbers[number] = name
    return list(numbers)


def present_classes(images: Images) -> tuple[int, ...]:
    """The classes that occur, in the order of their numbers; no pixel is read."""
    labels = known_labels(images, torch.arange(len(images)))
    assert labels is not None, "every data set that can be named knows its labels"
    return tuple(labels.bincount().nonzero().flatten().tolist())

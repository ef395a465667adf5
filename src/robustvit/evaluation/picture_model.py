"""A model for single pictures: the size that it takes, and what its classes are called."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import nn

from robustvit.core.config import Tree, validated
from robustvit.core.errors import UserError, nearest
from robustvit.data.base import as_pixels, class_names as names_of_data
from robustvit.data.picture import Picture, decode_picture, sample_picture
from robustvit.data.preprocess import Preprocess
from robustvit.data.sample import Cifar10Sample
from robustvit.evaluation.one_picture import AttackedPicture
from robustvit.evaluation.subject import checked_logits
from robustvit.models import eval_mode
from robustvit.models.create import describe
from robustvit.models.heads import network_of, through
from robustvit.models.reference import ModelRef

IMAGENET_CLASSES = 1000
SAMPLED = ("cifar10", "cifar10_sample")
"""Data with the classes of the package's photographs."""
SIDES = {"cifar10": 32, "cifar100": 32}
"""Of the images of data sets, for networks that take any."""


@dataclass(frozen=True)
class PictureModel:
    """A model by its reference, loaded when it is first asked for."""

    ref: ModelRef
    size: int | None = None
    """Of the pictures; None: the model's."""
    head: str | None = None
    """Of a model with several, the one that is attacked and asked; None: its output."""

    @cached_property
    def module(self) -> nn.Module:
        return through(self.ref.module(), self.head)

    @cached_property
    def preprocess(self) -> Preprocess:
        """As its run read pictures; else to the model's size, the middle of what isn't square."""
        known = _part(_part(self.ref.recipe, "data"), "preprocess")
        size = self.size or input_size(self.module, self.ref.recipe is None) or SIDES.get(_trained_on(self.ref.recipe))
        if known and self.size is None:
            made: Preprocess = validated(Preprocess, known, "recipe.data.preprocess")
            if made.size is not None:
                return made
        return Preprocess() if size is None else Preprocess(size=size, how="crop", crop_fraction=1.0)

    def picture(self, name: str, data: bytes | None = None) -> Picture:
        """A photograph of the package by its name, or the picture that these bytes are a file of."""
        if data is None:
            return sample_picture(name, self.preprocess)
        return decode_picture(data, name, self.preprocess)

    def num_classes(self, picture: Picture) -> int:
        """By a pass, as names of classes are needed before the attack."""
        x = as_pixels(torch.from_numpy(np.array(picture.pixels)).permute(2, 0, 1)[None])
        with eval_mode(self.module):
            return int(checked_logits(self.module, x).shape[1])

    def known_label(self, picture: Picture) -> int | None:
        """The right class of a photograph of the package, where the model has the classes of its data."""
        is_known = picture.label is not None and _trained_on(self.ref.recipe) in SAMPLED
        return picture.label if is_known and self.num_classes(picture) == 10 else None

    def verdict(self, made: AttackedPicture) -> str:
        """`fooled: cat is now dog; inside Linf 8/255 (distance 8/255), as stored`."""
        classes = len(made.before)
        own, now = (self.class_name(number, classes) for number in (made.label, made.predicted))
        distance = f"{255 * made.distance:.4g}/255" if made.threat.norm == "inf" else f"{made.distance:.4g}"
        aim = "" if made.target is None else f", aimed at {self.class_name(made.target, classes)}"
        if made.is_fooled and made.distance == 0:
            outcome = f"wrong without an attack: {own} is {now}"
        elif made.is_fooled:
            outcome = f"fooled: {own} is now {now}"
        elif made.predicted != made.label:
            outcome = f"not the target: {own} is now {now}"
        else:
            outcome = f"not fooled: still {own}, as far as {made.suite} finds"
        said = int(made.before.argmax())
        if said != made.label and made.distance > 0:
            aim += f"; before the attack, the model said {self.class_name(said, classes)}"
        return f"{outcome}{aim}; inside {made.threat} (distance {distance}), as stored"

    def top(self, probabilities: np.ndarray, count: int = 5) -> list[tuple[str, float]]:
        """The most probable classes by name."""
        order = (-probabilities).argsort(kind="stable")[:count]
        return [(self.class_name(int(one), len(probabilities)), float(probabilities[one])) for one in order]

    def class_name(self, number: int, num_classes: int) -> str:
        names = class_names(self.ref.recipe, num_classes)
        return names[number] if number < len(names) else str(number)

    def class_number(self, text: str, num_classes: int) -> int:
        """By its number or name."""
        names = class_names(self.ref.recipe, num_classes)
        if text.isascii() and text.isdigit():  # int() doesn't read every digit of Unicode
            return int(text)
        wanted = text.lower()
        found = [place for place, name in enumerate(names) if wanted in (name.lower(), name.split(",")[0].lower())]
        if not found:
            known = nearest(text, list(names)) if names else f"; the classes of {self.ref.title} have numbers alone"
            raise UserError(f"no class '{text}'{known}")
        return found[0]


def is_sample(name: str) -> bool:
    return name.startswith("sample:")


def input_size(model: nn.Module, by_weights: bool) -> int | None:
    """The side of the images that a model was made for; None where it takes any.

    `by_weights`: whether timm's note of what its own weights were trained on counts.
    """
    backbone = network_of(model)
    of_patches = getattr(getattr(backbone, "patch_embed", None), "img_size", None)
    sides: list[Any] = [describe(model).get("img_size"), of_patches, getattr(backbone, "img_size", None)]
    if by_weights:
        sides.append((getattr(backbone, "pretrained_cfg", None) or {}).get("input_size"))
    for side in sides:
        last = side[-1] if isinstance(side, tuple | list) and side else side
        if isinstance(last, int) and last > 0:
            return last
    return None


def class_names(recipe: Tree | None, num_classes: int) -> Sequence[str]:
    """Of CIFAR-10 where the model was trained on it, of ImageNet where it has so many classes; else none."""
    if _trained_on(recipe) in SAMPLED and num_classes == 10:
        return names_of_data(Cifar10Sample().open("test")) or ()
    if num_classes == IMAGENET_CLASSES:
        from timm.data import ImageNetInfo

        return [str(name) for name in ImageNetInfo().label_descriptions()]
    return ()


def _trained_on(recipe: Tree | None) -> str:
    return str(_part(recipe, "data").get("name", ""))


def _part(tree: Any, name: str) -> dict[str, Any]:
    """Of a recipe, which somebody may have edited."""
    found = tree.get(name) if isinstance(tree, dict) else None
    return {"name": found} if isinstance(found, str) else found if isinstance(found, dict) else {}

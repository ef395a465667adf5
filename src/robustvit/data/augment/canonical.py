"""The canonical recipe's augmentation, and random erasing, which is part of it."""

from dataclasses import replace
from typing import Annotated, Literal

import torch
from torch import Tensor

from robustvit.core.component import OneOf, component
from robustvit.core.numbers import Number, UnitInterval
from robustvit.core.streams import SampleStreams
from robustvit.data.augment.base import Amount, AnyAugmentation, OnTop, Range, jittered, like, rectangles, scaled
from robustvit.data.augment.crops import Light
from robustvit.data.augment.rand_augment import RandAugment


@component("augmentation", "random_erasing")
class RandomErasing:
    """A rectangle of some images becomes noise (Zhong et al. 2020), as timm's `pixel` mode makes it."""

    probability: UnitInterval = 0.25
    """That an image is changed."""
    area: Range = (0.02, 1 / 3)
    """Fraction of the image's; a rectangle that doesn't fit is drawn again, ten times, then none."""
    ratio: Range = (0.3, 1 / 0.3)
    """Width to height."""
    fill: Literal["noise", "mean"] = "noise"
    """What the rectangle becomes."""
    mean: tuple[Number, Number, Number] = (0.485, 0.456, 0.406)
    """As for `std`."""
    std: tuple[Number, Number, Number] = (0.229, 0.224, 0.225)
    """Each pixel is normal with these, cut off at 0 and 1: standard normal on images normalized as ImageNet's."""

    def __call__(self, images: Tensor, random: SampleStreams) -> Tensor:
        rows = (random.uniform((), at="erase") < self.probability).nonzero().squeeze(1)
        height, width = images.shape[2:]
        boxes = rectangles(random[rows], self.area, self.ratio, (height, width), (height - 1, width - 1))
        keys = random[rows].integers(1 << 31, (), at="noise")
        mean, std = (torch.tensor(values).view(3, 1, 1) for values in (self.mean, self.std))
        made, generator = images.clone(), torch.Generator()
        for row, (top, left, tall, wide), key in zip(rows.tolist(), boxes.tolist(), keys.tolist(), strict=True):
            noise = torch.randn(3, tall, wide, generator=generator.manual_seed(key)) if self.fill == "noise" else 0
            made[row, :, top : top + tall, left : left + wide] = like(images, (mean + std * noise) * 255)
        return made

    def scaled(self, intensity: float) -> "RandomErasing":
        return replace(self, probability=self.probability * intensity)


OwnRandAugment = Annotated[RandAugment, OneOf("augmentation", only="rand_augment")]
OwnErasing = Annotated[RandomErasing, OneOf("augmentation", only="random_erasing")]


@component("augmentation", "canonical")
class Canonical(OnTop):
    """RandAugment and random erasing on top of a crop and flip: with `mixing`, what ViTs usually train with.

    Its four switches are `rand_augment`, `random_erasing`, `mixing.mixup` and `mixing.cutmix`: null is off.
    """

    base: AnyAugmentation = Light(jitter=0)
    """Crop and flip."""
    rand_augment: OwnRandAugment | None = RandAugment()
    """Null: off."""
    jitter: Amount = 0.4
    """Of the colors, where RandAugment is off: timm's loaders have one or the other."""
    random_erasing: OwnErasing | None = RandomErasing()
    """Null: off."""

    def on_top(self, images: Tensor, random: SampleStreams) -> Tensor:
        if self.rand_augment is not None:
            images = self.rand_augment(images, random.child("rand_augment"))
        elif self.jitter:
            images = jittered(images, self.jitter, random.child("jitter"))
        return images if self.random_erasing is None else self.random_erasing(images, random.child("erasing"))

    def scaled(self, intensity: float) -> "Canonical":
        return replace(
            self,
            base=scaled(self.base, intensity),
            rand_augment=self.rand_augment and self.rand_augment.scaled(intensity),
            jitter=self.jitter * intensity,
            random_erasing=self.random_erasing and self.random_erasing.scaled(intensity),
        )

"""The canonical recipe's augmentation."""

from dataclasses import replace
from typing import Annotated

from torch import Tensor

from robustvit.core.component import OneOf, component
from robustvit.core.streams import SampleStreams
from robustvit.data.augment.base import Amount, AnyAugmentation, Cropping, scaled
from robustvit.data.augment.color import jittered
from robustvit.data.augment.crops import Light
from robustvit.data.augment.rand_augment import RandAugment
from robustvit.data.augment.random_erasing import RandomErasing
from robustvit.data.base import Cut

OwnRandAugment = Annotated[RandAugment, OneOf("augmentation", only="rand_augment")]
OwnErasing = Annotated[RandomErasing, OneOf("augmentation", only="random_erasing")]


@component("augmentation", "canonical")
class Canonical:
    """RandAugment and random erasing on top of a crop and flip: with `mixing`, what ViTs usually train with.

    Its four switches are `rand_augment`, `random_erasing`, `mixing.mixup` and `mixing.cutmix`: null is off.
    """

    base: AnyAugmentation = Light(jitter=0)
    rand_augment: OwnRandAugment | None = RandAugment()
    jitter: Amount = 0.4
    """Of the colors, where RandAugment is off: timm's loaders have one or the other."""
    random_erasing: OwnErasing | None = RandomErasing()

    def __call__(self, images: Tensor, random: SampleStreams) -> Tensor:
        return self._on_top(self.base(images, random.child("base")), random)

    @property
    def crops(self) -> bool:
        return isinstance(self.base, Cropping) and self.base.crops

    def cut(self, random: SampleStreams) -> Cut:
        assert isinstance(self.base, Cropping)
        return self.base.cut(random.child("base"))

    def after_crop(self, images: Tensor, random: SampleStreams) -> Tensor:
        assert isinstance(self.base, Cropping)
        return self._on_top(self.base.after_crop(images, random.child("base")), random)

    def _on_top(self, images: Tensor, random: SampleStreams) -> Tensor:
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

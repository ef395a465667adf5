"""RandAugment, image by image: timm's operations are Pillow's."""

from dataclasses import replace
from typing import Annotated, Any

import numpy as np
import torch
from PIL import Image, ImageOps
from pydantic import Field
from torch import Tensor

from robustvit.core.component import component
from robustvit.core.numbers import Count, Number, UnitInterval
from robustvit.core.streams import SampleStreams, reseeded_globals
from robustvit.data.augment.base import Amount, levels, like, whole

Level = Annotated[int, Field(ge=0, le=255)]


@component("augmentation", "rand_augment")
class RandAugment:
    """Operations at random (Cubuk et al. 2020) by timm; the defaults are its rand-m9-mstd0.5-inc1."""

    magnitude: Annotated[Number, Field(ge=0, le=10)] = 9.0
    """Strength of the operations."""
    deviation: Amount = 0.5
    """Of the magnitude, drawn anew for each operation."""
    operations: Count = 2
    """So many for each image."""
    probability: UnitInterval = 0.5
    """Of each operation."""
    increasing: bool = True
    """Operations that grow stronger with the magnitude, all of them."""
    fill: tuple[Level, Level, Level] = (124, 116, 104)
    """What comes in from outside: ImageNet's mean color."""

    def __call__(self, images: Tensor, random: SampleStreams) -> Tensor:
        transform = self._build()
        keys = random.integers(1 << 31, (2,), at="key").tolist()
        pictures = whole(levels(images)).permute(0, 2, 3, 1).contiguous()  # (B, H, W, 3)
        made = torch.empty_like(pictures)
        with reseeded_globals() as seed_all:  # timm draws from the global generators
            for row, key in enumerate(keys):
                seed_all("rand_augment", *key)
                made[row] = torch.from_numpy(np.array(transform(Image.fromarray(pictures[row].numpy()))))
        return like(images, made.permute(0, 3, 1, 2).contiguous())

    def scaled(self, intensity: float) -> "RandAugment":
        return replace(self, magnitude=self.magnitude * intensity)

    def _build(self) -> Any:
        from timm.data.auto_augment import rand_augment_transform

        config = f"rand-n{self.operations}-inc{int(self.increasing)}"
        transform = rand_augment_transform(config, {"translate_const": 250, "img_mean": self.fill})
        for operation in transform.ops:
            operation.magnitude, operation.magnitude_std = self.magnitude, self.deviation
            operation.prob = self.probability
            if operation.name.startswith("Posterize"):
                operation.aug_fn = _posterized
        return transform


def _posterized(picture: Any, bits: int, **_: object) -> Any:
    return ImageOps.posterize(picture, max(1, bits))  # timm also asks for 0, which Pillow refuses

"""Random erasing."""

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from robustvit.core.component import component
from robustvit.core.numbers import Number, UnitInterval
from robustvit.core.streams import SampleStreams
from robustvit.data.augment.base import Range, like, rectangles


@component("augmentation", "random_erasing")
class RandomErasing:
    """A rectangle of some images becomes noise (Zhong et al. 2020), as timm's `pixel` mode makes it."""

    probability: UnitInterval = 0.25
    area: Range = (0.02, 1 / 3)
    """Fraction of the image's; a rectangle that doesn't fit is drawn again, ten times, then none."""
    ratio: Range = (0.3, 1 / 0.3)
    """Width to height."""
    fill: Literal["noise", "mean"] = "noise"
    mean: tuple[Number, Number, Number] = (0.485, 0.456, 0.406)
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

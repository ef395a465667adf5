"""Random erasing."""

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from robustvit.core.component import Number, component
from robustvit.core.streams import SampleStreams
from robustvit.data.augment.base import Range, Share, like
from robustvit.data.augment.rectangles import rectangles


@component("augmentation", "random_erasing")
class RandomErasing:
    """A rectangle of some images becomes noise (Zhong et al. 2020), as timm's `pixel` mode makes it."""

    probability: Share = 0.25
    area: Range = (0.02, 1 / 3)
    """Share of the image's; a rectangle that doesn't fit is drawn again, ten times, then none."""
    ratio: Range = (0.3, 1 / 0.3)
    """Width to height."""
    fill: Literal["noise", "mean"] = "noise"
    mean: tuple[Number, Number, Number] = (0.485, 0.456, 0.406)
    std: tuple[Number, Number, Number] = (0.229, 0.224, 0.225)
    """Each pixel is normal with these, cut off at 0 and 1: standard normal on images normalised as ImageNet's."""

    def __call__(self, images: Tensor, random: SampleStreams) -> Tensor:
        size = (images.shape[2], images.shape[3])
        boxes = rectangles(random, self.area, self.ratio, size, largest=(size[0] - 1, size[1] - 1))
        chosen = (random.uniform((), at="erase") < self.probability) & (boxes[:, 2] > 0)
        keys = random.integers(1 << 31, (), at="noise")
        made = images.clone()
        generator = torch.Generator()
        # few rows, and rectangles of all sizes: one by one
        for row in chosen.nonzero().squeeze(1).tolist():
            top, left, height, width = boxes[row].tolist()
            noise = torch.zeros(3, height, width)
            if self.fill == "noise":
                torch.randn(noise.shape, generator=generator.manual_seed(int(keys[row])), out=noise)
            mean, std = (torch.tensor(values).view(3, 1, 1) for values in (self.mean, self.std))
            made[row, :, top : top + height, left : left + width] = like(images, (mean + std * noise) * 255)
        return made

    def scaled(self, intensity: float) -> "RandomErasing":
        return replace(self, probability=self.probability * intensity)

"""Random rectangles inside an image: what a resized crop keeps and what random erasing takes away."""

import math

import torch
from torch import Tensor

from robustvit.core.streams import SampleStreams

TRIES = 10
"""Draws of a size, as in torchvision and timm: the first that fits inside is taken."""


def rectangles(
    random: SampleStreams,
    area: tuple[float, float],
    ratio: tuple[float, float],
    image: tuple[int, int],
    largest: tuple[int, int],
) -> Tensor:
    """(B, 4): top, left, height, width; height 0 where no draw was at most `largest`.

    The area is a uniform fraction of the image's, width to height uniform in the logarithm, the place uniform.
    """
    drawn = random.uniform((2, TRIES), at="size", dtype=torch.float64)
    areas = (area[0] + (area[1] - area[0]) * drawn[:, 0]) * math.prod(image)
    ratios = (math.log(ratio[0]) + (math.log(ratio[1]) - math.log(ratio[0])) * drawn[:, 1]).exp()
    heights, widths = (areas / ratios).sqrt().round(), (areas * ratios).sqrt().round()  # (B, TRIES)
    fits = (heights >= 1) & (widths >= 1) & (heights <= largest[0]) & (widths <= largest[1])
    first = fits.to(torch.uint8).argmax(1, keepdim=True)
    any_fits = fits.any(1)
    height = torch.where(any_fits, heights.gather(1, first).squeeze(1), 0)
    width = torch.where(any_fits, widths.gather(1, first).squeeze(1), 0)
    place = random.uniform((2,), at="place", dtype=torch.float64)
    top = (place[:, 0] * (image[0] - height + 1)).floor()
    left = (place[:, 1] * (image[1] - width + 1)).floor()
    return torch.stack([top, left, height, width], 1).long()

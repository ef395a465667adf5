"""Linear filters, the same for any image size: Gaussian, motion, zoom and convolution with small kernels."""

import math
from functools import lru_cache
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from robustvit.data.corruptions.parameters import Motion

Border = Literal["edge", "reflect"]
"""What lies outside: the edge repeated, or the mirror image with the edge twice."""


def smoothed(images: Tensor, sigma: float, border: Border = "edge", truncate: float = 4) -> Tensor:
    """(..., H, W) under a Gaussian that is cut off at so many deviations."""
    if int(truncate * sigma + 0.5) == 0:
        return images
    height, width = images.shape[-2:]
    rows = gaussian_matrix(height, sigma, border, truncate)
    columns = rows if height == width else gaussian_matrix(width, sigma, border, truncate)
    return rows @ images @ columns.T


@lru_cache(maxsize=64)
def gaussian_matrix(size: int, sigma: float, border: Border, truncate: float) -> Tensor:
    """(size, size): the filter along one axis with its border folded in, so that a wide one costs no more."""
    radius = int(truncate * sigma + 0.5)
    offsets = torch.arange(-radius, radius + 1)
    weights = (-0.5 * (offsets.double() / sigma) ** 2).exp()
    places = torch.arange(size)[:, None] + offsets
    if border == "edge":
        places = places.clamp(0, size - 1)
    else:
        places = places % (2 * size)
        places = torch.minimum(places, 2 * size - 1 - places)
    matrix = torch.zeros(size, size, dtype=torch.float64)
    return matrix.scatter_add_(1, places, (weights / weights.sum()).expand(size, -1))


def convolved(images: Tensor, kernel: Tensor) -> Tensor:
    """(..., H, W) with a symmetric kernel of odd sides, mirrored at the border without repeating the edge."""
    reach, (height, width) = kernel.shape[-1] // 2, images.shape[-2:]
    padded = F.pad(images, [reach] * 4, mode="reflect")
    size = (_fast_length(padded.shape[-2]), _fast_length(padded.shape[-1]))
    product = torch.fft.rfft2(padded, s=size).mul_(torch.fft.rfft2(kernel, s=size))
    whole: Tensor = torch.fft.irfft2(product, s=size)
    return whole[..., 2 * reach : 2 * reach + height, 2 * reach : 2 * reach + width]


def _fast_length(least: int) -> int:
    """The next length without a prime factor above 5."""

    def is_fast(length: int) -> bool:
        for factor in (2, 3, 5):
            while length % factor == 0:
                length //= factor
        return length == 1

    return next(length for length in range(least, 2 * least + 1) if is_fast(length))


def motion_blurred(image: Tensor, motion: Motion, degrees: float) -> Tensor:
    """(C, H, W) along a line in one direction, by the rule of ImageMagick: whole pixels, the edge repeated."""
    angle, taps, (height, width) = math.radians(degrees), range(2 * motion.radius + 1), image.shape[-2:]
    weights = [math.exp(-(i**2) / (2 * motion.sigma**2)) for i in taps]
    downs = [math.ceil(i * math.sin(angle) - 0.5) for i in taps]
    rights = [math.ceil(i * math.cos(angle) - 0.5) for i in taps]
    top, left = -min(downs), -min(rights)
    padded = F.pad(image, [left, max(rights), top, max(downs)], mode="replicate")
    total = torch.zeros_like(image)
    for weight, down, right in zip(weights, downs, rights, strict=True):
        part = padded[:, top + down : top + down + height, left + right : left + right + width]
        total.add_(part, alpha=weight / sum(weights))
    return total


def zoomed(images: Tensor, factor: float) -> Tensor:
    """(B, C, H, W) enlarged about the center, in the same size."""
    sides = images.shape[-2:]
    inner = [math.ceil(side / factor) for side in sides]
    outer = [round(side * factor) for side in inner]
    tops = [(side - cut) // 2 for side, cut in zip(sides, inner, strict=True)]
    cut = images[..., tops[0] : tops[0] + inner[0], tops[1] : tops[1] + inner[1]]
    made = F.interpolate(cut, outer, mode="bilinear", align_corners=True)
    tops = [(grown - side) // 2 for side, grown in zip(sides, outer, strict=True)]
    return made[..., tops[0] : tops[0] + sides[0], tops[1] : tops[1] + sides[1]]

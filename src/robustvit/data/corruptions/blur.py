"""Blurs: out of focus, behind glass, in motion, zooming, and Gaussian."""

from functools import lru_cache
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from robustvit.core.component import component
from robustvit.core.streams import SampleStreams
from robustvit.data.corruptions import parameters
from robustvit.data.corruptions.base import Levels, truncated, unit
from robustvit.data.corruptions.filters import convolved, motion_blurred, smoothed, zoomed


@component("corruption", "gaussian_blur")
class GaussianBlur:
    """A Gaussian filter."""

    group: ClassVar[str] = "extra"
    levels: ClassVar[Levels] = parameters.GAUSSIAN_BLUR

    def __call__(self, images: Tensor, setting: float, random: SampleStreams) -> Tensor:
        return truncated(smoothed(unit(images), setting))


@component("corruption", "defocus_blur")
class DefocusBlur:
    """Out of focus: every point becomes a disk."""

    group: ClassVar[str] = "blur"
    levels: ClassVar[Levels] = parameters.DEFOCUS_BLUR

    def __call__(self, images: Tensor, setting: parameters.Disk, random: SampleStreams) -> Tensor:
        return truncated(convolved(unit(images), _disk(setting)))


@lru_cache(maxsize=16)
def _disk(disk: parameters.Disk) -> Tensor:
    """Its pixels with the rim smoothed, without the zeros around.

    Those of radius 8 and 10 reach the border of the authors' array, mirrored there: they add 1 % of light.
    """
    reach, rim = (8, 1) if disk.radius <= 8 else (int(disk.radius), 2)
    line = torch.arange(-reach, reach + 1, dtype=torch.float64)
    inside = (line[:, None] ** 2 + line**2 <= disk.radius**2).double()
    weights = (-0.5 * (torch.arange(-rim, rim + 1).double() / disk.alias) ** 2).exp()
    weights /= weights.sum()
    kernel = convolved((inside / inside.sum())[None], weights[:, None] * weights)[0]
    kernel = kernel.where(kernel > 1e-12, 0)
    extent = int((kernel.sum(0) > 0).nonzero()[0])
    return kernel[extent : len(line) - extent, extent : len(line) - extent]


@component("corruption", "glass_blur")
class GlassBlur:
    """Behind frosted glass: pixels take the place of near ones, between two Gaussian filters."""

    group: ClassVar[str] = "blur"
    levels: ClassVar[Levels] = parameters.GLASS_BLUR

    def __call__(self, images: Tensor, setting: parameters.Glass, random: SampleStreams) -> Tensor:
        first = truncated(smoothed(unit(images), setting.sigma)).flatten(2)
        height, width = images.shape[2:]
        source = torch.arange(height * width).expand(len(images), -1)
        for number in range(setting.passes):
            source = source.gather(1, _moved(height, width, setting.reach, random.child("pass", number)))
        shuffled = first.gather(2, source[:, None].expand(-1, 3, -1)).view_as(images)
        return truncated(smoothed(unit(shuffled), setting.sigma))


def _moved(height: int, width: int, reach: int, random: SampleStreams) -> Tensor:
    """(B, H * W): where each pixel comes from in one pass, which goes from the last pixel to the first.

    The authors' exchange of two pixels copies one onto the other, since both sides are views. A pixel that is copied
    from one behind it thus gets what that one was given before, and so on: such chains are followed by doubling.
    """
    rows, columns = torch.arange(height)[:, None], torch.arange(width)
    inside = (rows > reach) & (rows <= height - reach) & (columns > reach) & (columns <= width - reach)  # (H, W)
    steps = random.integers((2 * reach) ** 2, (height, width), at="step")
    own = rows * width + columns
    source = own + inside * ((steps // (2 * reach) - reach) * width + steps % (2 * reach) - reach)
    source, inside = source.flatten(1), inside.flatten()
    follows = inside & inside[source] & (source > own.flatten())
    while follows.any():
        source, follows = source.gather(1, source).where(follows, source), follows & follows.gather(1, source)
    return source


@component("corruption", "motion_blur")
class MotionBlur:
    """Moved while exposed, within 45 degrees of the horizontal."""

    group: ClassVar[str] = "blur"
    levels: ClassVar[Levels] = parameters.MOTION_BLUR

    def __call__(self, images: Tensor, setting: parameters.Motion, random: SampleStreams) -> Tensor:
        angles = random.uniform((), at="angle", dtype=torch.float64).mul_(90).sub_(45).tolist()
        blurred = [motion_blurred(*pair) for pair in zip(images.double(), [setting] * len(images), angles, strict=True)]
        return torch.stack(blurred).round_().to(torch.uint8)  # ImageMagick rounds


@component("corruption", "zoom_blur")
class ZoomBlur:
    """Zoomed while exposed: the mean of the image and its enlargements."""

    group: ClassVar[str] = "blur"
    levels: ClassVar[Levels] = parameters.ZOOM_BLUR

    def __call__(self, images: Tensor, setting: parameters.Zoom, random: SampleStreams) -> Tensor:
        pixels = unit(images)
        factors = np.arange(1, setting.end, setting.step).tolist()  # its rounding tells how many there are
        total = pixels.clone()
        for factor in factors:
            total += pixels if factor == 1 else zoomed(pixels, factor)
        return truncated(total.div_(len(factors) + 1))

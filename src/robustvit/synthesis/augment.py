"""Non-leaking augmentation (Karras et al. 2022, appendix F.2): random changes that the network gets as labels.

Sampling with all labels at zero gives images that are not augmented.
"""

import math
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from robustvit.core.component import settings
from robustvit.core.numbers import UnitInterval
from robustvit.core.streams import SampleStreams

_SCALE_STD = 0.2
"""Of log2 of the size, isotropic or not."""
_SHIFT_STD = 0.125
"""Of a translation, in units of the image."""
_SYM6 = (
    0.015404109327027373, 0.0034907120842174702, -0.11799011114819057, -0.048311742585633, 0.4910559419267466,
    0.787641141030194, 0.3379294217276218, -0.07263752278646252, -0.021060292512300564, 0.04472490177066578,
    0.0017677118642428036, -0.007800708325034148,
)  # fmt: skip
"""Low-pass filter of the symlet wavelet with 6 vanishing moments (Daubechies 1992); its peak is the sixth number."""
_PEAK = 5
_MARGIN = len(_SYM6) // 4
"""Pixels around the result that its edge is filtered from."""


@settings
class AugmentationPipe:
    """Flips, scaling, rotation, stretching and translation, each of an image with `probability`; nine labels."""

    probability: UnitInterval = 0.12
    """Of each change; Karras et al. use 0.12 on CIFAR-10."""
    mirror: bool = True
    """Half of the images are flipped left to right, whatever the probability."""

    num_labels: ClassVar[int] = 9

    def __call__(self, images: Tensor, random: SampleStreams) -> tuple[Tensor, Tensor]:
        """The images and their labels (B, 9), which are zero where nothing was changed."""
        draw = _Draws(random, self.probability, images.dtype)
        mirrored = draw.uniform("mirror") < 0.5
        mirrored = mirrored if self.mirror else torch.zeros_like(mirrored)
        turned = draw.gated(draw.uniform("turn") < 0.5, "turn")
        images = torch.where(mirrored[:, None, None, None], images.flip(3), images)
        images = torch.where(turned[:, None, None, None], images.flip(2), images)

        size = draw.gated(draw.normal("size"), "size")
        angle = draw.gated((2 * draw.uniform("angle") - 1) * math.pi, "angle")
        stretch = draw.gated(draw.normal("stretch"), "stretch")
        direction = (2 * draw.uniform("direction") - 1) * math.pi
        direction = direction * (draw.uniform("is diagonal") < 0.5)
        shift_x, shift_y = (draw.gated(draw.normal(f"shift {axis}"), "shift") for axis in "xy")

        height, width = images.shape[2:]
        to_source = _scaling((size * -_SCALE_STD).exp2()) @ _rotation(angle)
        by = (stretch * -_SCALE_STD).exp2()
        to_source = to_source @ _rotation(-direction) @ _scaling(by, 1 / by) @ _rotation(direction)
        to_source = to_source @ _translation(-shift_x * (width * _SHIFT_STD), -shift_y * (height * _SHIFT_STD))
        moved = (size != 0) | (angle != 0) | (stretch != 0) | (shift_x != 0) | (shift_y != 0)
        if moved.any():
            images = images.clone()
            images[moved] = warped(images[moved], to_source[moved])
        labels = (mirrored, turned, size, angle.cos() - 1, angle.sin(), stretch * direction.cos(),
                  stretch * direction.sin(), shift_x, shift_y)  # fmt: skip
        return images, torch.stack([label.to(images.dtype) for label in labels], 1)


class _Draws:
    """(B,) numbers by name, each gated by an event of the given probability."""

    def __init__(self, random: SampleStreams, probability: float, dtype: torch.dtype) -> None:
        self.random, self.probability, self.dtype = random, probability, dtype

    def uniform(self, name: str) -> Tensor:
        return self.random.uniform((), at=name, dtype=self.dtype)

    def normal(self, name: str) -> Tensor:
        return self.random.normal((), at=name, dtype=self.dtype)

    def gated(self, values: Tensor, event: str) -> Tensor:
        happens = self.random.uniform((), at=f"{event} happens") < self.probability
        return torch.where(happens, values, torch.zeros_like(values))


def _matrix(rows: tuple[tuple[Tensor | float, ...], ...], like: Tensor) -> Tensor:
    """(B, 3, 3)."""
    entries = [entry if isinstance(entry, Tensor) else torch.full_like(like, entry) for row in rows for entry in row]
    return torch.stack(entries, 1).view(-1, 3, 3)


def _scaling(x: Tensor, y: Tensor | None = None) -> Tensor:
    return _matrix(((x, 0.0, 0.0), (0.0, x if y is None else y, 0.0), (0.0, 0.0, 1.0)), x)


def _rotation(angle: Tensor) -> Tensor:
    cos, sin = angle.cos(), angle.sin()
    return _matrix(((cos, -sin, 0.0), (sin, cos, 0.0), (0.0, 0.0, 1.0)), angle)


def _translation(x: Tensor, y: Tensor) -> Tensor:
    return _matrix(((1.0, 0.0, x), (0.0, 1.0, y), (0.0, 0.0, 1.0)), x)


def warped(images: Tensor, to_source: Tensor) -> Tensor:
    """Images under affine maps (B, 3, 3) from pixels of the result to those of the image, both from the center.

    Sampled at twice the resolution between the filters of a wavelet, as bilinear sampling alone would blur. Outside
    of an image lies its mirror image.
    """
    height, width = images.shape[2:]
    fine = _resampled(F.pad(images, (width - 1, width - 1, height - 1, height - 1), mode="reflect"), up=True)
    # along each axis, pixel i is at 2 i in the finer grid
    xs, ys = (
        torch.arange(2 * (side + 2 * _MARGIN), dtype=images.dtype, device=images.device) / 2 - _MARGIN - (side - 1) / 2
        for side in (width, height)
    )
    y, x = torch.meshgrid(ys, xs, indexing="ij")
    source = torch.stack([x, y, torch.ones_like(x)], -1) @ to_source[:, None, :2].mT  # (B, H', W', 2) x, y
    sides = torch.tensor([width, height], dtype=images.dtype, device=images.device)
    places = 2 * (source + (sides - 1) / 2 + (sides - 1))  # in the finer grid of the padded image
    fine_sides = torch.tensor([fine.shape[3], fine.shape[2]], dtype=images.dtype, device=images.device)
    grid = (2 * places + 1) / fine_sides - 1
    sampled = F.grid_sample(fine, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    return _resampled(sampled, up=False)[:, :, _MARGIN:-_MARGIN, _MARGIN:-_MARGIN]


def _resampled(images: Tensor, up: bool) -> Tensor:
    """To twice or half the resolution; half undoes twice."""
    resample = F.conv_transpose2d if up else F.conv2d
    taps = torch.tensor(_SYM6, dtype=images.dtype, device=images.device)
    planes = images.flatten(0, 1).unsqueeze(1)
    for kernel, stride, padding in ((taps[None, :], (1, 2), (0, _PEAK)), (taps[:, None], (2, 1), (_PEAK, 0))):
        planes = resample(planes, kernel[None, None], stride=stride, padding=padding)
    return planes.view(*images.shape[:2], *planes.shape[2:])

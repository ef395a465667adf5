"""What an augmentation is: a random change of each image, drawn from its own stream, whatever batch it is in."""

import math
from abc import ABC, abstractmethod
from typing import Annotated, Literal, Protocol, runtime_checkable

import torch
from pydantic import AfterValidator, Field
from torch import Tensor

from robustvit.core.component import OneOf
from robustvit.core.numbers import Number
from robustvit.core.streams import SampleStreams
from robustvit.data.base import Cut

Interpolation = Literal["bilinear", "bicubic"]
Bounds = tuple[float, float]
Size = tuple[int, int]

_TRIES = 10
"""Draws of a size, as in torchvision and timm: the first that fits inside is taken."""
_PIXELS = 1 << 16
"""Pixels worked on at a time: more leave the cache, fewer cost more in calls than in work."""
_FINE = 256
"""Steps of a gray level in which gray is summed: whole numbers have the same sum in any order, floats have not."""


class Augmentation(Protocol):
    """(B, 3, H, W), uint8 or floats in [0, 1], to the same shape and kind."""

    def __call__(self, images: Tensor, random: SampleStreams) -> Tensor: ...


@runtime_checkable
class Scalable(Protocol):
    """What an augmentation also has whose intensity a schedule may raise."""

    def scaled(self, intensity: float) -> Augmentation:
        """The same, weaker: 1 changes nothing, 0 is the weakest it can be."""


def scaled(augmentation: Augmentation, intensity: float) -> Augmentation:
    return augmentation.scaled(intensity) if isinstance(augmentation, Scalable) else augmentation


@runtime_checkable
class Cropping(Augmentation, Protocol):
    """What an augmentation also has that begins by cutting a part out, which a file's whole picture may give."""

    @property
    def crops(self) -> bool:
        """Whether anything is cut."""

    def cut(self, random: SampleStreams) -> Cut:
        """What is kept of whole pictures; `random` is what the augmentation gets."""

    def after_crop(self, images: Tensor, random: SampleStreams) -> Tensor:
        """All that follows."""


class OnTop(ABC):
    """Base class of augmentations that change what another one, their setting `base`, has made; null: the images."""

    base: Augmentation | None

    @abstractmethod
    def on_top(self, images: Tensor, random: SampleStreams) -> Tensor:
        """What this one does itself."""

    def __call__(self, images: Tensor, random: SampleStreams) -> Tensor:
        return self.on_top(images if self.base is None else self.base(images, random.child("base")), random)

    @property
    def crops(self) -> bool:
        return isinstance(self.base, Cropping) and self.base.crops

    def cut(self, random: SampleStreams) -> Cut:
        assert isinstance(self.base, Cropping)
        return self.base.cut(random.child("base"))

    def after_crop(self, images: Tensor, random: SampleStreams) -> Tensor:
        assert isinstance(self.base, Cropping)
        return self.on_top(self.base.after_crop(images, random.child("base")), random)


AnyAugmentation = Annotated[Augmentation, OneOf("augmentation")]
Amount = Annotated[Number, Field(ge=0)]


def _in_order(bounds: Bounds) -> Bounds:
    if not 0 < bounds[0] <= bounds[1]:
        raise ValueError(f"from a number above 0 to one that is not smaller, not {list(bounds)}")
    return bounds


Range = Annotated[tuple[Number, Number], AfterValidator(_in_order)]


def levels(images: Tensor) -> Tensor:
    """Gray levels 0 to 255 as float32."""
    return images.float() if images.dtype == torch.uint8 else images.float() * 255


def whole(levels: Tensor) -> Tensor:
    """Gray levels as uint8."""
    return levels if levels.dtype == torch.uint8 else levels.round().clamp(0, 255).to(torch.uint8)


def like(images: Tensor, changed: Tensor) -> Tensor:
    """Gray levels again as the kind of number that the images have."""
    return whole(changed) if images.dtype == torch.uint8 else (changed / 255).clamp(0, 1).to(images.dtype)


def rectangles(random: SampleStreams, area: Bounds, ratio: Bounds, image: Size, largest: Size) -> Tensor:
    """(B, 4) top, left, height, width: what a resized crop keeps or random erasing takes; height 0 where none fits.

    The area is a uniform fraction of the image's, width to height uniform in the logarithm, the place uniform.
    """
    drawn = random.uniform((2, _TRIES), at="size", dtype=torch.float64)
    areas = (area[0] + (area[1] - area[0]) * drawn[:, 0]) * math.prod(image)
    ratios = (math.log(ratio[0]) + (math.log(ratio[1]) - math.log(ratio[0])) * drawn[:, 1]).exp()
    heights, widths = (areas / ratios).sqrt().round(), (areas * ratios).sqrt().round()  # (B, _TRIES)
    fits = (heights >= 1) & (widths >= 1) & (heights <= largest[0]) & (widths <= largest[1])
    first = fits.to(torch.uint8).argmax(1, keepdim=True)
    sizes = torch.cat([heights.gather(1, first), widths.gather(1, first)], 1) * fits.any(1, keepdim=True)  # (B, 2)
    place = random.uniform((2,), at="place", dtype=torch.float64)
    corners = (place * (torch.tensor(image) - sizes + 1)).floor()
    return torch.cat([corners, sizes], 1).long()


def jittered(images: Tensor, amount: float, random: SampleStreams) -> Tensor:
    """Brightness, contrast and saturation in random order, by factors uniform in 1 +- amount as in torchvision."""
    lowest = max(0.0, 1 - amount)
    factors = lowest + (1 + amount - lowest) * random.uniform((3,), at="factor")
    order = random.uniform((3,), at="order").argsort(1)  # 0 brightness, 1 contrast, 2 saturation
    factors = factors.gather(1, order)
    chunk = max(1, _PIXELS // (images.shape[2] * images.shape[3]))
    parts = zip(*(torch.split(tensor, chunk) for tensor in (images, factors, order)), strict=True)
    return torch.cat([like(some, _blended(levels(some), *rest)) for some, *rest in parts])


def _blended(pixels: Tensor, factors: Tensor, order: Tensor) -> Tensor:
    # a kernel for each rounding: fused ones may round otherwise at the end of a row, which moves with the batch
    for turn in range(3):
        operation, factor = (column[:, turn].view(-1, 1, 1, 1) for column in (order, factors))
        red, green, blue = torch.split(pixels, 1, 1)
        gray = (0.299 * red).add_(0.587 * green).add_(0.114 * blue)  # (b, 1, H, W)
        total = (gray * _FINE).round_().sum((2, 3), keepdim=True, dtype=torch.float64)
        mean = (total / (_FINE * gray[0].numel())).float()
        base = gray.mul_(operation == 2).add_(mean * (operation == 1))
        pixels = (pixels - base).mul_(factor).add_(base).clamp_(0, 255)
    return pixels

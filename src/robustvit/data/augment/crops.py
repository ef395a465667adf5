"""Random crops and flips: CIFAR's usual pair, and the light recipe's augmentation."""

from dataclasses import replace
from typing import Annotated, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from robustvit.core.component import component
from robustvit.core.errors import UserError
from robustvit.core.numbers import UnitInterval
from robustvit.core.streams import SampleStreams
from robustvit.data.augment.base import Amount, Interpolation, Range, Size, jittered, rectangles
from robustvit.data.base import Box, Cut


@component("augmentation", "pad_crop")
class PadCrop:
    """Pad, cut the old size out at random, flip at random: CIFAR's usual pair with pad 4 and flip."""

    pad: Annotated[int, Field(ge=0)] = 4
    """Pixels on each side."""
    flip: bool = True
    """Mirror half of the images."""
    border: Literal["zeros", "reflect"] = "zeros"
    """What the padding shows."""

    def __call__(self, images: Tensor, random: SampleStreams) -> Tensor:
        height, width = images.shape[2:]
        offsets = random.integers(2 * self.pad + 1, (2,), at="crop").tolist()
        padded = zip(self._padded(images), offsets, strict=True)
        # slices, because gathering all rows and columns at once takes twice as long, four times on large images
        made = torch.stack([image[:, top : top + height, left : left + width] for image, (top, left) in padded])
        if not self.flip:
            return made
        mirrored = random.integers(2, (1,), at="flip").bool().view(-1, 1, 1, 1)
        return torch.where(mirrored, made.flip(3), made)

    def _padded(self, images: Tensor) -> Tensor:
        if self.border == "zeros":
            return F.pad(images, [self.pad] * 4)
        height, width = images.shape[2:]
        if self.pad >= min(height, width):
            raise UserError(f"pad_crop.pad: {self.pad} is too much to reflect an image of {height}x{width} pixels")
        return F.pad(images, [self.pad] * 4, mode="reflect")


@component("augmentation", "light")
class Light:
    """A random part resized to the whole, flip, color jitter: the defaults are ImageNet's in A Light Recipe.

    Its fine-tuning on CIFAR has scale [0.8, 1.2], ratio [0.95, 1.05] and no jitter.
    """

    scale: Range = (0.08, 1.0)
    """Fraction of the area that is kept; sizes that don't fit are drawn again, ten times, then all is kept."""
    ratio: Range = (3 / 4, 4 / 3)
    """Width to height of what is kept."""
    interpolation: Interpolation = "bicubic"
    """When pictures are resized."""
    flip: UnitInterval = 0.5
    """Probability that an image is mirrored."""
    jitter: Amount = 0.4
    """Brightness, contrast and saturation change by up to this fraction; 0: none."""
    crops: ClassVar[bool] = True

    def __call__(self, images: Tensor, random: SampleStreams) -> Tensor:
        return self.after_crop(self._resized(images, random), random)

    def cut(self, random: SampleStreams) -> Cut:
        def box(row: int, height: int, width: int) -> Box:
            return tuple(self._boxes(random[torch.tensor([row])], (height, width))[0].tolist())

        return Cut(box, self.interpolation)

    def after_crop(self, images: Tensor, random: SampleStreams) -> Tensor:
        mirrored = random.uniform((), at="flip") < self.flip
        images = torch.where(mirrored.view(-1, 1, 1, 1), images.flip(3), images)
        return jittered(images, self.jitter, random.child("jitter")) if self.jitter else images

    def scaled(self, intensity: float) -> "Light":
        """Only the colors: where the crop lies is no matter of strength."""
        return replace(self, jitter=self.jitter * intensity)

    def _resized(self, images: Tensor, random: SampleStreams) -> Tensor:
        size = (images.shape[2], images.shape[3])
        boxes = zip(images, self._boxes(random, size).tolist(), strict=True)
        # one by one is three times as fast as batched gathers or products, and no image's bits depend on its neighbors
        parts = [image[None, :, top : top + height, left : left + width] for image, (top, left, height, width) in boxes]
        # antialiased as Pillow's kernels are
        resized = torch.cat([F.interpolate(part, size, mode=self.interpolation, antialias=True) for part in parts])
        return resized if images.dtype == torch.uint8 else resized.clamp(0, 1)  # bicubic overshoots

    def _boxes(self, random: SampleStreams, size: Size) -> Tensor:
        boxes = rectangles(random.child("crop"), self.scale, self.ratio, size, largest=size)
        # where none fits, the largest center part whose ratio is allowed
        height, width = min(size[0], round(size[1] / self.ratio[0])), min(size[1], round(size[0] * self.ratio[1]))
        center = [(size[0] - height) // 2, (size[1] - width) // 2, height, width]
        boxes[boxes[:, 2] == 0] = torch.tensor(center)
        return boxes

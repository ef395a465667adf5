"""CIFAR's usual augmentation."""

from typing import Annotated

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from robustvit.core.component import component
from robustvit.core.streams import SampleStreams


@component("augmentation", "pad_crop")
class PadCrop:
    """Pad with zeros, cut the old size out at random, flip at random: CIFAR's usual pair with pad 4 and flip."""

    pad: Annotated[int, Field(ge=0)] = 4
    flip: bool = True

    def __call__(self, images: Tensor, random: SampleStreams) -> Tensor:
        height, width = images.shape[2:]
        offsets = random.integers(2 * self.pad + 1, (2,), at="crop").tolist()
        padded = zip(F.pad(images, [self.pad] * 4), offsets, strict=True)
        # slices, because gathering all rows and columns at once takes twice as long, four times on large images
        made = torch.stack([image[:, top : top + height, left : left + width] for image, (top, left) in padded])
        if not self.flip:
            return made
        mirrored = random.integers(2, (1,), at="flip").bool().view(-1, 1, 1, 1)
        return torch.where(mirrored, made.flip(3), made)

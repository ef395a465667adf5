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
        count, channels, height, width = images.shape
        padded = F.pad(images, [self.pad] * 4)
        offset = random.integers(2 * self.pad + 1, (2,), at="crop").to(images.device)  # (B, 2)
        rows = offset[:, :1] + torch.arange(height, device=images.device)  # (B, H)
        columns = offset[:, 1:] + torch.arange(width, device=images.device)  # (B, W)
        if self.flip:
            mirrored = random.integers(2, (1,), at="flip").bool().to(images.device)
            columns = torch.where(mirrored, columns.flip(1), columns)
        batch = torch.arange(count, device=images.device).view(-1, 1, 1, 1)
        channel = torch.arange(channels, device=images.device).view(1, -1, 1, 1)
        return padded[batch, channel, rows.view(count, 1, height, 1), columns.view(count, 1, 1, width)]

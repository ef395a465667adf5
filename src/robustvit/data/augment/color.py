"""Color jitter, batched: brightness, contrast and saturation by random factors in random order."""

import torch
from torch import Tensor

from robustvit.core.streams import SampleStreams
from robustvit.data.augment.base import levels, like

_PIXELS = 1 << 16
"""Pixels worked on at a time: more leave the cache, fewer cost more in calls than in work."""
_FINE = 256
"""Steps of a gray level in which gray is summed: whole numbers have the same sum in any order, floats have not."""


def jittered(images: Tensor, amount: float, random: SampleStreams) -> Tensor:
    """Each factor is uniform in 1 +- amount (not below 0), as in torchvision."""
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

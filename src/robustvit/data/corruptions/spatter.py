"""Spatter: drops of water or mud on the lens."""

from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from robustvit.core.component import component
from robustvit.core.streams import SampleStreams
from robustvit.data.corruptions import parameters
from robustvit.data.corruptions.base import Levels, normal, truncated, unit
from robustvit.data.corruptions.filters import smoothed

_WATER = torch.tensor([175, 238, 238], dtype=torch.float64).view(3, 1, 1) / 255
_MUD = torch.tensor([63, 42, 20], dtype=torch.float64).view(3, 1, 1) / 255
_FARTHEST = 20
"""Pixels from the rim of a drop, beyond which its shade stays the same."""
_LIGHT = torch.tensor([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]], dtype=torch.float64)
"""Falls on the drops from one side."""
_WEAK, _STRONG = 50, 150
"""Thresholds of an edge."""


@component("corruption", "spatter")
class Spatter:
    """Drops of water, or of mud at severities 4 and 5, on the lens."""

    group: ClassVar[str] = "extra"
    levels: ClassVar[Levels] = parameters.SPATTER

    def __call__(self, images: Tensor, setting: parameters.Spatter, random: SampleStreams) -> Tensor:
        noise = normal(random, (1, *images.shape[2:]), "drops").mul_(setting.deviation).add_(setting.mean)
        liquid = smoothed(noise, setting.sigma)
        liquid = liquid.where(liquid >= setting.threshold, 0)
        pixels = unit(images)
        if setting.is_mud:
            cover = smoothed((liquid > setting.threshold).double(), setting.strength)
            cover = cover.where(cover >= 0.8, 0)
            return truncated(pixels * (1 - cover) + _MUD * cover)
        return truncated(pixels + _drops(truncated(liquid).double()).mul_(setting.strength) * _WATER)


def _drops(liquid: Tensor) -> Tensor:
    """(B, 1, H, W) in [0, 1]: how bright each pixel of the water is, from its depth in gray levels."""
    edges = canny(liquid)
    depth = torch.stack([_distance(one) for one in edges[:, 0].numpy()])[:, None].clamp_(max=_FARTHEST)
    shade = _equalized(_mean(depth).add_(1e-6).floor_())
    lit = _correlated(shade, _LIGHT).clamp_(0, 255)
    bright = _mean(lit).round_().mul_(liquid)
    brightest = bright.amax((2, 3), keepdim=True)
    return bright / brightest.where(brightest > 0, 1)  # where no drop is, all is 0


def canny(image: Tensor) -> Tensor:
    """(B, 1, H, W) of whole gray levels to its edges, as OpenCV finds them with 3x3 derivatives and absolute sums."""
    height, width = image.shape[2:]
    padded = F.pad(image, [1] * 4, mode="replicate")
    left, middle, right = (padded[..., i : i + width] for i in range(3))
    across = right - left
    across = across[:, :, :-2] + 2 * across[:, :, 1:-1] + across[:, :, 2:]
    along = left + 2 * middle + right
    down = along[:, :, 2:] - along[:, :, :-2]
    strength = across.abs() + down.abs()
    around = F.pad(strength, [1] * 4)

    def at(row: int, column: int) -> Tensor:
        return around[:, :, 1 + row : 1 + row + height, 1 + column : 1 + column + width]

    slope = 13573 / (1 << 15)  # tangent of 22.5 degrees, as rounded there
    flat, steep = down.abs() < slope * across.abs(), down.abs() > (slope + 2) * across.abs()
    rises = (across < 0) ^ (down < 0)
    first = torch.where(rises, at(-1, 1), at(-1, -1))
    last = torch.where(rises, at(1, -1), at(1, 1))
    is_ridge = (strength > first) & (strength > last)
    is_ridge = torch.where(steep, (strength > at(-1, 0)) & (strength >= at(1, 0)), is_ridge)
    is_ridge = torch.where(flat, (strength > at(0, -1)) & (strength >= at(0, 1)), is_ridge)
    weak = is_ridge & (strength > _WEAK)
    return _connected(weak, weak & (strength > _STRONG))


def _connected(weak: Tensor, strong: Tensor) -> Tensor:
    """The weak edges that touch a strong one, directly or through others."""
    from scipy.ndimage import label

    kept = []
    for candidates, seeds in zip(weak[:, 0].numpy(), strong[:, 0].numpy(), strict=True):
        parts, count = label(candidates, structure=np.ones((3, 3), dtype=int))
        reached = np.zeros(count + 1, dtype=bool)
        reached[parts[seeds]] = True
        reached[0] = False
        kept.append(torch.from_numpy(reached[parts]))
    return torch.stack(kept)[:, None]


def _distance(edges: np.ndarray) -> Tensor:
    """(H, W) from the nearest edge, in OpenCV's steps: 1 along an axis, 1.4 diagonal, 2.1969 a knight's move."""
    from scipy.ndimage import distance_transform_edt

    if not edges.any():
        return torch.full(edges.shape, float(_FARTHEST), dtype=torch.float64)
    nearest = distance_transform_edt(~edges, return_distances=False, return_indices=True)
    moves = np.abs(nearest - np.indices(edges.shape)).astype(np.float64)
    longer, shorter = moves.max(0), moves.min(0)
    knight = np.minimum(shorter, longer - shorter)
    straight, diagonal = np.maximum(longer - 2 * shorter, 0), np.maximum(2 * shorter - longer, 0)
    return torch.from_numpy(straight + 1.4 * diagonal + 2.1969 * knight)


def _equalized(levels: Tensor) -> Tensor:
    """Gray levels spread so that each is as frequent as any other; one level alone stays."""
    counts = F.one_hot(levels.long().flatten(1), _FARTHEST + 1).sum(1)  # (B, 21)
    total = counts.sum(1, keepdim=True)
    is_first = (counts.cumsum(1) > 0).cumsum(1) == 1
    lowest = (counts * is_first).sum(1, keepdim=True)
    table = ((counts.cumsum(1) - lowest).clamp_min(0) * 255 / (total - lowest).clamp_min(1)).round()
    table = torch.where(lowest == total, torch.arange(_FARTHEST + 1), table)
    return table.double().gather(1, levels.long().flatten(1)).view_as(levels)


def _mean(images: Tensor) -> Tensor:
    return F.avg_pool2d(F.pad(images, [1] * 4, mode="reflect"), 3, stride=1)


def _correlated(images: Tensor, kernel: Tensor) -> Tensor:
    height, width = images.shape[2:]
    padded = F.pad(images, [1] * 4, mode="reflect")
    parts = (kernel[i, j] * padded[:, :, i : i + height, j : j + width] for i in range(3) for j in range(3))
    return torch.stack(list(parts)).sum(0)

"""MixUp and CutMix: images and labels of a batch blended by pairs."""

from dataclasses import replace
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from robustvit.core.component import settings
from robustvit.core.numbers import Number, UnitInterval
from robustvit.core.streams import SampleStreams

Alpha = Annotated[Number, Field(gt=0)]


@settings
class Mixing:
    """MixUp (Zhang et al. 2018) and CutMix (Yun et al. 2019), one or the other at a time, as timm mixes."""

    mixup: Alpha | None = 0.8
    """An image's weight in the blend is Beta(alpha, alpha); null: off."""
    cutmix: Alpha | None = 1.0
    """The fraction of its area that an image keeps is Beta(alpha, alpha), before the edge cuts the box; null: off."""
    probability: UnitInterval = 1.0
    """That anything is mixed; 0.3 in Mo et al. 2022."""
    switch: UnitInterval = 0.5
    """That it is CutMix, where both are on."""
    each: Literal["batch", "image"] = "batch"
    """Whether a batch has one draw, as the papers have it, or every image has its own."""

    @property
    def is_on(self) -> bool:
        return (self.mixup or self.cutmix) is not None

    def partners(self, rows: Tensor, count: int, batch: SampleStreams) -> Tensor:
        """The rows that are mixed into these, of a batch of `count`; `batch` has one stream, the step's."""
        return (rows - 1 - batch.integers(max(1, count - 1), (), at="partner")) % count

    def blend(
        self, x: Tensor, y: Tensor, other_x: Tensor, other_y: Tensor, random: SampleStreams
    ) -> tuple[Tensor, Tensor]:
        """Each image and its (B, K) probabilities with its partner's; `random`: the images' streams, or the batch's."""
        kept, weight = self._draw(random, x.shape[2], x.shape[3])
        blended = torch.lerp(other_x, x, kept.to(x.dtype)).clamp_(0, 1)
        return blended, torch.lerp(other_y, y, weight.to(x.dtype))

    def scaled(self, intensity: float) -> "Mixing":
        return replace(self, probability=self.probability * intensity)

    def _draw(self, random: SampleStreams, height: int, width: int) -> tuple[Tensor, Tensor]:
        """(n, 1, H, W) how much of each pixel an image keeps, and (n, 1) of its label."""
        on, cut = random.uniform((2,), at="which").unbind(1)
        cuts = cut < (self.switch if self.mixup and self.cutmix else float(self.cutmix is not None))
        alpha = torch.where(cuts, self.cutmix or 1.0, self.mixup or 1.0)
        lam = _beta(random.uniform((), at="lambda", dtype=torch.float64), alpha)
        inside = _box(random, lam, height, width)
        weight = torch.where(cuts, 1 - inside.double().mean((1, 2)), lam)
        kept = torch.where(cuts.view(-1, 1, 1), 1 - inside.double(), lam.view(-1, 1, 1))
        mixed = on < self.probability
        return torch.where(mixed.view(-1, 1, 1), kept, 1.0).unsqueeze(1), torch.where(mixed, weight, 1.0).unsqueeze(1)


def _beta(uniform: Tensor, alpha: Tensor) -> Tensor:
    """Beta(alpha, alpha) from one uniform number, by the inverse of its distribution."""
    from scipy.special import betaincinv

    return torch.from_numpy(betaincinv(alpha.double().numpy(), alpha.double().numpy(), uniform.numpy()))


def _box(random: SampleStreams, lam: Tensor, height: int, width: int) -> Tensor:
    """(n, H, W): inside a box of sqrt(1 - lam) of each side around a random center, cut off at the edges."""
    center = random.uniform((2,), at="centre", dtype=torch.float64)
    within = []
    for axis, size in enumerate((height, width)):
        length = (size * (1 - lam).sqrt()).floor()
        middle = (center[:, axis] * size).floor()
        begin, end = middle - (length / 2).floor(), middle + ((length + 1) / 2).floor()
        at = torch.arange(size)
        within.append((at >= begin[:, None]) & (at < end[:, None]))
    return within[0][:, :, None] & within[1][:, None, :]

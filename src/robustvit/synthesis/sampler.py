"""Heun's method from noise to an image (Karras et al. 2022, algorithms 1 and 2)."""

import math
from collections.abc import Callable
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from robustvit.core.component import settings
from robustvit.core.numbers import NonNegative, Positive
from robustvit.core.streams import SampleStreams

Denoise = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(x, sigma (B,), labels (B,)) -> the expected image."""


@settings
class Heun:
    """Second order in the step: 2 * steps - 1 passes of the network for an image."""

    steps: Annotated[int, Field(ge=2, le=10_000)] = 18
    """Noise levels; Karras et al. take 18 for CIFAR-10, Wang et al. 2023 20 for CIFAR-10 and 25 for CIFAR-100."""
    sigma_min: Positive = 0.002
    """The last level before 0."""
    sigma_max: Positive = 80.0
    """The level that images begin with."""
    rho: Positive = 7.0
    """Larger: shorter steps near 0."""
    churn: NonNegative = 0.0
    """How much noise is added in all and removed again; 0: an image follows from its first noise."""
    churn_min: NonNegative = 0.0
    """The lowest level at which noise is added."""
    churn_max: Positive | None = None
    """The highest level at which noise is added; null: no limit."""
    churn_noise: Positive = 1.0
    """Standard deviation of that noise."""

    def __post_init__(self) -> None:
        if self.sigma_min >= self.sigma_max:
            raise ValueError(f"sigma_min: below sigma_max ({self.sigma_max:g}), not {self.sigma_min:g}")

    def levels(self) -> list[float]:
        """From sigma_max down to sigma_min, then 0."""
        high, low = self.sigma_max ** (1 / self.rho), self.sigma_min ** (1 / self.rho)
        fractions = [number / (self.steps - 1) for number in range(self.steps)]
        return [*((high + fraction * (low - high)) ** self.rho for fraction in fractions), 0.0]

    def _raised(self, sigma: float) -> float:
        """The level after churn."""
        is_churned = self.churn_min <= sigma and (self.churn_max is None or sigma <= self.churn_max)
        return sigma * (1 + min(self.churn / self.steps, math.sqrt(2) - 1)) if is_churned else sigma

    @torch.no_grad()
    def __call__(self, denoise: Denoise, shape: tuple[int, ...], labels: Tensor, random: SampleStreams) -> Tensor:
        """(B, *shape) in float64; row i depends on its own stream and label alone, but for rounding."""
        levels = self.levels()

        def slope(x: Tensor, sigma: float) -> Tensor:
            level = torch.full((len(x),), sigma, dtype=torch.float64, device=x.device)
            return (x - denoise(x, level, labels).to(torch.float64)) / sigma

        x = random.normal(shape, at="noise", dtype=torch.float64) * levels[0]
        for number in range(self.steps):
            sigma, target = self._raised(levels[number]), levels[number + 1]
            if sigma > levels[number]:
                added = random.normal(shape, at=f"churn {number}", dtype=torch.float64)
                x = x + math.sqrt(sigma**2 - levels[number] ** 2) * self.churn_noise * added
            first = slope(x, sigma)
            moved = x + (target - sigma) * first
            if target > 0:  # at 0 there is no slope, and Euler's step is exact enough
                moved = x + (target - sigma) * (first + slope(moved, target)) / 2
            x = moved
        return x

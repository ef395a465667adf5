"""Schedules are functions of progress in [0, 1], so that a shorter run keeps their shape."""

import math
from collections.abc import Callable
from typing import Annotated

from pydantic import Field

from robustvit.core.component import OneOf, component
from robustvit.core.numbers import Count, Number, UnitInterval

AnySchedule = Annotated[Callable[[float], float], OneOf("schedule")]
"""Progress to a factor of the peak."""


@component("schedule", "cosine")
class Cosine:
    """Linear warm-up from `start` of the peak, half a cosine down to `end` of it, and `cooldown` at that."""

    warmup: UnitInterval = 0.0
    """Fraction of the training, such as 10/110."""
    start: UnitInterval = 0.0
    """Fraction of the peak at the first step."""
    end: UnitInterval = 0.0
    """Fraction of the peak at the end."""
    cooldown: UnitInterval = 0.0
    """Fraction of the training that stays at the end value."""

    def __post_init__(self) -> None:
        if self.warmup + self.cooldown > 1:
            raise ValueError("warmup and cooldown together are more than the whole training")

    def __call__(self, progress: float) -> float:
        if progress < self.warmup:
            return _between(self.start, 1, progress / self.warmup)
        decay = 1 - self.warmup - self.cooldown
        done = min(1.0, (progress - self.warmup) / decay) if decay > 0 else float(self.cooldown > 0)
        return _between(1, self.end, _smooth(done))


@component("schedule", "one_cycle")
class OneCycle:
    """Half a cosine up from `start` of the peak and one down to `end` of it: torch's OneCycleLR with its defaults."""

    warmup: UnitInterval = 0.025
    """Wang et al. 2023 rise for this fraction of the training."""
    start: UnitInterval = 1 / 25
    """Fraction of the peak at the first step."""
    end: UnitInterval = 1 / 25 / 1e4
    """Fraction of the peak at the end."""

    def __call__(self, progress: float) -> float:
        if progress < self.warmup:
            return _between(self.start, 1, _smooth(progress / self.warmup))
        return _between(1, self.end, _smooth((progress - self.warmup) / (1 - self.warmup) if self.warmup < 1 else 0))


@component("schedule", "linear")
class Linear:
    """Linear warm-up from `start` of the peak, then linear down to `end` of it: how short trainings are run."""

    warmup: UnitInterval = 0.0
    """Fraction of the training that rises."""
    start: UnitInterval = 0.0
    """Value at the first step."""
    end: UnitInterval = 0.0
    """Value at the last step."""

    def __call__(self, progress: float) -> float:
        if progress < self.warmup:
            return _between(self.start, 1, progress / self.warmup)
        return _between(1, self.end, (progress - self.warmup) / (1 - self.warmup) if self.warmup < 1 else 0)


@component("schedule", "step_decay")
class StepDecay:
    """Linear warm-up from `start` of the peak; times `factor` after every `every` of the training."""

    every: Annotated[Number, Field(gt=0, le=1)] = 0.3
    """30 of 100 epochs, as ResNets are trained on ImageNet."""
    factor: UnitInterval = 0.1
    """That the rate is multiplied with."""
    warmup: UnitInterval = 0.0
    """Fraction of the training that rises to the peak."""
    start: UnitInterval = 0.0
    """Fraction of the peak at the first step."""

    def __call__(self, progress: float) -> float:
        # multiples of a fraction such as 0.3 are off by a rounding error
        peak = self.factor ** math.floor(progress / self.every + 1e-9)
        return peak * (_between(self.start, 1, progress / self.warmup) if progress < self.warmup else 1.0)


@component("schedule", "linear_warmup")
class LinearWarmup:
    """`start` up to `begin` of the training, from there to 1 at `until`, then 1: how eps grows in A Light Recipe."""

    until: UnitInterval = 0.0
    """Where the rise ends, as a fraction of the training."""
    start: UnitInterval = 0.0
    """Value at the first step."""
    begin: UnitInterval = 0.0
    """Where the rise begins; at `until`: a jump."""

    def __post_init__(self) -> None:
        if self.begin > self.until:
            raise ValueError(f"begin: the rise can't begin at {self.begin:g}, after it ends (until: {self.until:g})")

    def __call__(self, progress: float) -> float:
        if progress >= self.until:
            return 1.0
        if progress <= self.begin:
            return self.start
        return _between(self.start, 1, (progress - self.begin) / (self.until - self.begin))


@component("schedule", "cosine_warmup")
class CosineWarmup:
    """As `linear_warmup`, but along half a cosine."""

    until: UnitInterval = 0.0
    """Fraction of the training that rises."""
    start: UnitInterval = 0.0
    """Value at the first step."""

    def __call__(self, progress: float) -> float:
        return 1.0 if progress >= self.until else _between(self.start, 1, _smooth(progress / self.until))


@component("schedule", "stairs")
class Stairs:
    """`inner`, evaluated at only `count` points: with the number of epochs, a schedule by epoch instead of by step."""

    count: Count = 1
    """Number of points."""
    inner: AnySchedule = Cosine()
    """The schedule that is evaluated there."""

    def __call__(self, progress: float) -> float:
        return self.inner(min(math.floor(progress * self.count + 1e-9), self.count - 1) / self.count)


def _between(low: float, high: float, fraction: float) -> float:
    return low + (high - low) * fraction


def _smooth(fraction: float) -> float:
    """0 to 1 along half a cosine."""
    return (1 - math.cos(math.pi * fraction)) / 2

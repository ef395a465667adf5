"""Schedules are functions of progress in [0, 1], so that a shorter run keeps their shape."""

import math
from typing import Annotated, Protocol

from pydantic import Field

from robustvit.core.component import Number, OneOf, component

Share = Annotated[Number, Field(ge=0, le=1)]


class Schedule(Protocol):
    """Progress to a factor of the peak."""

    def __call__(self, progress: float) -> float: ...


AnySchedule = Annotated[Schedule, OneOf("schedule")]


@component("schedule", "cosine")
class Cosine:
    """Linear warm-up from `start` of the peak, then half a cosine down to `end` of it."""

    warmup: Share = 0.0
    """Share of the training, such as 10/110."""
    start: Share = 0.0
    end: Share = 0.0

    def __call__(self, progress: float) -> float:
        if progress < self.warmup:
            return self.start + (1 - self.start) * progress / self.warmup
        done = (progress - self.warmup) / (1 - self.warmup) if self.warmup < 1 else 0.0
        return self.end + (1 - self.end) * (1 + math.cos(math.pi * done)) / 2


@component("schedule", "linear_warmup")
class LinearWarmup:
    """From `start` to 1 over the first `until` of the training, then 1: how eps grows in A Light Recipe."""

    until: Share = 0.0
    start: Share = 0.0

    def __call__(self, progress: float) -> float:
        if progress >= self.until:
            return 1.0
        return self.start + (1 - self.start) * progress / self.until

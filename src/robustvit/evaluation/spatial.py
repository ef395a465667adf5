"""The worst case over a grid of rotations and shifts (Engstrom et al. 2019).

One condition is one angle, with all shifts as its variants. A picture is rotated once for each fraction of a pixel
among the shifts, on a canvas with a margin as wide as the largest shift; whole pixels then only move a window of it.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from robustvit.core.component import component
from robustvit.core.errors import UserError
from robustvit.core.figures import Chart, Heatmap
from robustvit.core.numbers import NonNegative, counted
from robustvit.core.streams import SampleStreams
from robustvit.evaluation.conditions import Condition, ConditionEvaluator
from robustvit.evaluation.ledger import CLEAN, Answers
from robustvit.evaluation.subject import Subject

Shift = tuple[float, float]
"""Pixels downwards and to the right."""


@dataclass(frozen=True)
class Grid:
    """Equally spaced shifts along each axis, and angles."""

    shift: float
    """The largest, in pixels."""
    shifts: int
    angle: float
    """The largest, in degrees."""
    angles: int

    @property
    def offsets(self) -> list[float]:
        return _spaced(self.shift, self.shifts)

    def list_angles(self) -> list[float]:
        """The largest first, which fool most."""
        return sorted(_spaced(self.angle, self.angles), key=lambda angle: (-abs(angle), angle))

    def list_shifts(self) -> list[Shift]:
        """The largest first, but that those with the same fractions of a pixel follow each other."""
        alike: dict[Shift, list[Shift]] = {}
        for pair in sorted(((dy, dx) for dy in self.offsets for dx in self.offsets), key=_nearness):
            alike.setdefault(_fractions(pair), []).append(pair)
        return [pair for pairs in alike.values() for pair in pairs]

    def __str__(self) -> str:
        shifts = f"{self.shifts} x {self.shifts} shifts of up to {self.shift:g} px" if self.shifts > 1 else "no shift"
        angles = f"{self.angles} rotations of up to {self.angle:g} degrees" if self.angles > 1 else "no rotation"
        return f"{shifts}, {angles}: {counted(self.shifts**2 * self.angles, 'variant')} of each image"


GRIDS = {
    "understanding": Grid(16, 9, 30, 31),
    "engstrom": Grid(math.inf, 5, 30, 31),
    "foolbox": Grid(3, 5, 30, 5),
}
"""Bhojanapalli et al. 2021 (Understanding Robustness of Transformers for Image Classification), Engstrom et al. 2019,
and the defaults of foolbox's SpatialAttack."""
LARGEST = 3 / 28
"""Of the side: Engstrom et al. shift by up to 3 px at 28 and 32 px, and 24 px at 224."""


@component("evaluator", "spatial")
class Spatial(ConditionEvaluator):
    """Accuracy in the worst case over a grid of rotations and shifts (Engstrom et al. 2019)."""

    grid: Literal["understanding", "engstrom", "foolbox"] = "understanding"
    """`understanding`: 9 x 9 shifts of up to 16 px and 31 rotations (Bhojanapalli et al. 2021); `engstrom`: 5 x 5 of up
    to 3/28 of the side, 31; `foolbox`: 5 x 5 of up to 3 px, 5."""
    shift: NonNegative | None = None
    """The largest shift in pixels; null: the grid's, at most 3/28 of the shorter side (3 px at 32)."""
    shifts: Annotated[int, Field(ge=1, le=101)] | None = None
    """Along each axis; null: the grid's."""
    angle: Annotated[NonNegative, Field(le=180)] | None = None
    """The largest rotation in degrees; null: the grid's 30."""
    angles: Annotated[int, Field(ge=1, le=3601)] | None = None
    """How many rotations; null: the grid's."""

    worst = True

    def resolve_grid(self, side: int) -> Grid:
        """For pictures whose shorter side has so many pixels."""
        usual = GRIDS[self.grid]
        shift = min(usual.shift, max(1, round(LARGEST * side))) if self.shift is None else self.shift
        if shift >= side:
            moved_out = f"a shift of {shift:g} px leaves nothing of pictures of {side} px"
            raise UserError(f"spatial: {moved_out}; give shift: at most {side - 1}")
        for count, largest, name in ((self.shifts, self.shift, "shift"), (self.angles, self.angle, "angle")):
            if count == 1 and largest:
                raise UserError(f"spatial: {name}s: 1 is no {name} at all; give {name}: 0, or more {name}s")
        angle = usual.angle if self.angle is None else self.angle
        return Grid(*_range(shift, self.shifts or usual.shifts), *_range(angle, self.angles or usual.angles))

    def list_conditions(self, subject: Subject) -> Sequence[Condition]:
        grid = self._grid(subject)
        rotated = (Condition(_condition_name(angle), change=Moved(grid, angle)) for angle in grid.list_angles())
        return (Condition(CLEAN), *rotated)

    def _grid(self, subject: Subject) -> Grid:
        x, _ = subject.batch(subject.indices[:1])
        return self.resolve_grid(min(x.shape[2:]))

    def describe_worst(self, subject: Subject) -> str:
        return str(self._grid(subject))

    def notes(self, subject: Subject, answers: Mapping[str, Answers]) -> tuple[str, ...]:
        return (self.describe_worst(subject),)

    def figures(self, subject: Subject, answers: Mapping[str, Answers]) -> tuple[Chart | Heatmap, ...]:
        """Where images were fooled first; what comes later in the order was tried on fewer of them."""
        grid = self._grid(subject)
        sizes, angles = sorted({_size(shift) for shift in grid.list_shifts()}), sorted(grid.list_angles())
        row_of = [sizes.index(_size(shift)) for shift in grid.list_shifts()]
        counts = np.zeros((len(sizes), len(angles)))
        for column, angle in enumerate(angles):
            first_wrong = answers[_condition_name(angle)].first_wrong
            for variant in () if first_wrong is None else first_wrong[first_wrong >= 0]:
                counts[row_of[variant], column] += 1
        heatmap = Heatmap(
            "First transformation that fools",
            tuple(f"{size:g}" for size in sizes),
            tuple(f"{angle:g}" for angle in angles),
            tuple(map(tuple, (counts / len(subject.indices)).tolist())),
            row_title="larger of both shifts, px",
            column_title="rotation, degrees",
            note="Of all images, how many a transformation is the first to fool. Large rotations and shifts come "
            "first, and each image leaves at its first error: compare models by cell, not cells with each other.",
        )
        return (heatmap,)


@dataclass(frozen=True)
class Moved:
    """Pictures rotated counter-clockwise about their center, then shifted; the rest is black."""

    grid: Grid
    """All of its shifts, one after the other."""
    angle: float

    @property
    def variants(self) -> int:
        return len(self.grid.list_shifts())

    def __call__(self, x: Tensor, streams: SampleStreams) -> Iterator[Tensor]:
        height, width = x.shape[2:]
        margin = math.ceil(self.grid.shift)
        canvas, fractions = x, None
        for shift in self.grid.list_shifts():
            if fractions != _fractions(shift):
                fractions = _fractions(shift)
                canvas = rotated(x, self.angle, fractions, margin)
            top, left = (margin - math.floor(offset) for offset in shift)
            yield canvas[:, :, top : top + height, left : left + width].contiguous()


def rotated(x: Tensor, angle: float, shift: Shift = (0.0, 0.0), margin: int = 0) -> Tensor:
    """(B, 3, H + 2 margin, W + 2 margin): one bilinear warp in pixels, blended with black at the rim."""
    if angle == 0 and shift == (0, 0):
        return F.pad(x, [margin] * 4)
    height, width = x.shape[2:]
    ys, xs = (
        torch.arange(side + 2 * margin, dtype=torch.float64, device=x.device) - margin - (side - 1) / 2 - offset
        for side, offset in zip((height, width), shift, strict=True)
    )
    cos, sin = math.cos(math.radians(angle)), math.sin(math.radians(angle))
    # where each pixel comes from, relative to the center: rows count downwards
    from_x, from_y = xs[None] * cos - ys[:, None] * sin, xs[None] * sin + ys[:, None] * cos
    places = torch.stack([2 * from_x / width, 2 * from_y / height], dim=-1).to(x.dtype)
    return F.grid_sample(x, places.expand(len(x), -1, -1, -1), "bilinear", "zeros", align_corners=False).clamp_(0, 1)


def _condition_name(angle: float) -> str:
    return f"{angle:g} degrees"


def _range(largest: float, count: int) -> tuple[float, int]:
    return (largest, count) if largest and count > 1 else (0.0, 1)


def _spaced(largest: float, count: int) -> list[float]:
    if count == 1:
        return [0.0]
    return [round(largest * (2 * number / (count - 1) - 1), 9) + 0.0 for number in range(count)]


def _size(shift: Shift) -> float:
    return max(map(abs, shift))


def _nearness(shift: Shift) -> Shift:
    """Smaller for a larger shift."""
    return -_size(shift), -sum(map(abs, shift))


def _fractions(shift: Shift) -> Shift:
    dy, dx = (round(offset - math.floor(offset), 9) for offset in shift)
    return dy, dx

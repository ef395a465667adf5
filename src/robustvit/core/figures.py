"""Tables, charts, heat maps and pictures as plain values, which results and findings hold and the report draws."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from robustvit.core.errors import UserError

Interval = tuple[float, float]
Number = Annotated[float, Field(allow_inf_nan=False)]


@dataclass(frozen=True)
class Table:
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    """The first cell of each is its name; fractions are written in percent."""

    def __post_init__(self) -> None:
        if any(len(row) != len(self.columns) for row in self.rows):
            raise UserError(f"table '{self.title}': rows and columns differ in length")


@dataclass(frozen=True)
class Fit:
    """A straight line through points: y = intercept + slope * x, of log10 of what is on a logarithmic axis."""

    slope: Number
    intercept: Number
    interval: Interval | None = None
    """95 % for the slope."""
    method: str = ""
    """How line and interval were found."""


@dataclass(frozen=True)
class Line:
    """Values at places along an axis; None leaves a gap. In a scatter plot, a group of points."""

    name: str
    xs: tuple[Number, ...]
    ys: tuple[float | None, ...]
    intervals: tuple[Interval, ...] = ()
    """Around each value, where chance has a part in it."""
    ranges: tuple[Interval, ...] = ()
    """The smallest and largest of what each value summarizes."""
    labels: tuple[str, ...] = ()
    """Of the points of a scatter plot."""
    sizes: tuple[float, ...] = ()
    """Of the points of a scatter plot: areas of the markers, in any unit."""
    fit: Fit | None = None
    joined: bool = False
    """Whether a line goes from point to point of a scatter plot."""
    x_intervals: tuple[Interval, ...] = ()
    """Around the place of each point of a scatter plot."""
    is_reference: bool = False
    """Whether it is there to be compared with, so that it is drawn once for several models that have the same."""


@dataclass(frozen=True)
class Chart:
    title: str
    x_title: str
    lines: tuple[Line, ...]
    in_percent: bool = False
    """Whether values are fractions."""
    kind: Literal["lines", "histogram", "dots", "scatter"] = "lines"
    rows: tuple[str, ...] = ()
    """Of dots, which are in rows of these names instead of along an axis of numbers; xs are the rows' numbers."""
    marks: tuple[tuple[float, str], ...] = ()
    """Places along the axis that mean something, with a word."""
    y_title: str = ""
    x_in_percent: bool = False
    x_log: bool = False
    y_log: bool = False
    note: str = ""
    """Said below it."""

    def __post_init__(self) -> None:
        for line in self.lines:
            problem = self._problem(line)
            if problem:
                raise UserError(f"chart '{self.title}': {problem}")

    def _problem(self, line: Line) -> str:
        """What no type says: parts that must fit each other."""
        pairs = (line.intervals, line.ranges, line.x_intervals)
        per_point: tuple[Sequence[object], ...] = (*pairs, line.labels, line.sizes)
        if any(len(values) != len(line.xs) for values in (line.ys, *filter(None, per_point))):
            return "a line has another number of values than of places"
        ends = (end for several in pairs for pair in several for end in pair)
        if not all(map(math.isfinite, (*line.xs, *line.sizes, *ends))):
            return "a number that is not finite; only values may be missing"
        if self.kind == "dots" and not all(0 <= x < len(self.rows) for x in line.xs):
            return "a dot lies outside of its rows"
        if self.x_log and any(x <= 0 for x in line.xs):
            return "a place at or below 0 on a logarithmic axis"
        if self.y_log and any(y is not None and y <= 0 for y in line.ys):
            return "a value at or below 0 on a logarithmic axis"
        return "a marker of less than no area" if any(size < 0 for size in line.sizes) else ""


@dataclass(frozen=True)
class Heatmap:
    """A matrix in colors, with its numbers where they fit; None is an empty cell."""

    title: str
    rows: tuple[str, ...]
    """Names; of a large matrix perhaps none."""
    columns: tuple[str, ...]
    values: tuple[tuple[float | None, ...], ...] = ()
    row_title: str = ""
    column_title: str = ""
    in_percent: bool = True
    """Whether values are fractions."""
    scale: Literal["sequential", "diverging"] = "sequential"
    """Colors from the smallest to the largest value, or to both sides of `center`."""
    limits: Interval | None = None
    """Values of the first and last color, so that several maps can be compared; None: the values' own."""
    center: Number = 0.0
    """The value without color of a diverging scale."""
    array: str = ""
    """Of a finding: the name among its arrays of a matrix that is too large for text, instead of `values`."""
    note: str = ""
    """Said below it."""
    kind: Literal["heatmap"] = "heatmap"

    def __post_init__(self) -> None:
        if bool(self.array) == bool(self.values):
            raise UserError(f"heat map '{self.title}': either values or the name of an array")
        if self.limits is not None and not self.limits[0] < self.limits[1]:
            raise UserError(f"heat map '{self.title}': limits that grow, not {self.limits}")
        lengths = {len(row) for row in self.values}
        if self.values and (len(lengths) > 1 or not self.fits((len(self.values), *lengths))):
            raise UserError(f"heat map '{self.title}': values of another shape than its rows and columns")

    def fits(self, shape: Sequence[int]) -> bool:
        """Whether a matrix of this shape has the rows and columns that are named."""
        named = zip(shape, (self.rows, self.columns), strict=True) if len(shape) == 2 else ()
        return len(shape) == 2 and all(size > 0 and len(names) in (0, size) for size, names in named)


Figure = Annotated[Chart | Heatmap, Field(discriminator="kind")]


@dataclass(frozen=True)
class Pictures:
    """Rows of pictures, stored as (rows, columns, 3, H, W) in [0, 1] among the arrays."""

    title: str
    array: str
    columns: tuple[str, ...]
    rows: tuple[str, ...]


def percent(fraction: float) -> str:
    return f"{100 * fraction:.1f} %"


def without_nan(plain: Mapping[str, Any]) -> dict[str, Any]:
    """Plain data as JSON holds it; what isn't a number becomes null, which leaves a gap."""
    known: dict[str, Any] = json.loads(json.dumps(plain), parse_constant=lambda _: None)
    return known

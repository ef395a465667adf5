"""Charts of lines as inline SVG."""

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from robustvit.core.numbers import short_count
from robustvit.reporting.axes import (
    HEIGHT,
    LETTER,
    WIDTH,
    Scale,
    Text,
    drawn_text,
    full_scale,
    grid,
    nothing,
    padded_scale,
    rule,
    shortened,
    svg,
    tight_scale,
)

Point = tuple[float, float | None]
"""Where, and the value there; None leaves a gap."""
Band = Sequence[tuple[float, float, float]]
"""(x, low, high)."""

LEFT, TOP, BOTTOM = 42, 20, 40
LABEL_GAP, LABEL_LINE, LONGEST_LABEL, MOST_LABEL_LINES = 3, 11, 21, 3
"""Between labels; between the lines of one, their letters and number."""
RIGHT = WIDTH - 10 - LETTER * LONGEST_LABEL
"""Where the plot ends: the same in every chart, so that those in a column align."""
NO_BREAK = "\N{NO-BREAK SPACE}"
MOST_POINTS = 300
"""More would be finer than the chart's pixels."""


@dataclass(frozen=True)
class Series:
    name: str
    style: str
    """Classes of the style sheet, such as `robust thin`."""
    points: Sequence[Point]
    band: Band = ()
    """An interval around the line."""
    has_dots: bool = False
    range: Band = ()
    """From the smallest to the largest of what each value summarizes."""
    sizes: Sequence[float] = ()
    """Areas of the markers."""
    labels: Sequence[str] = ()
    """Of the points."""

    @property
    def last(self) -> float:
        return next(y for _, y in reversed(self.points) if y is not None)

    @property
    def has_values(self) -> bool:
        return any(y is not None for _, y in self.points)


def line_chart(
    title: str,
    series: Sequence[Series],
    *,
    x_title: str,
    y_text: Text,
    y_range: tuple[float, float] | None = None,
    marks: Sequence[tuple[float, str]] = (),
    has_values: bool = True,
    x_text: Text = short_count,
    y_title: str = "",
    x_log: bool = False,
    y_log: bool = False,
    from_zero: bool = True,
) -> Markup:
    """Each line is labeled at its end with its name and last value; `marks` are vertical lines with a word."""
    drawn = [line for line in series if line.has_values]
    if not drawn:
        return nothing(title)
    values = [y_text(line.last) if has_values else "" for line in drawn]
    labels = [_label(line.name, value) for line, value in zip(drawn, values, strict=True)]
    top = TOP + (16 if y_title else 0)
    height = max(HEIGHT, top + BOTTOM + sum(map(_label_height, labels)))
    x = _x_scale(drawn, x_log, from_zero)
    y = _y_scale(drawn, y_range, height - BOTTOM, top, y_log)
    parts = [
        *([drawn_text("tick", 0, 11, y_title)] if y_title else ()),
        *grid(x, y, x_title, x_text, y_text),
        *(_mark(x, y, at, word) for at, word in marks if x.low <= at <= x.high),
        *(_band(x, y, line.range, f"range {line.style}") for line in drawn if line.range),
        *(_band(x, y, line.band, f"band {line.style}") for line in drawn if line.band),
        *(_line(x, y, line) for line in drawn),
        *_labels(y, drawn, labels),
    ]
    spoken = ", ".join(f"{line.name} {value}".rstrip() for line, value in zip(drawn, values, strict=True))
    return svg(height, f"{title}. {'At the end' if has_values else 'Lines'}: {spoken}.", parts)


def _label(name: str, value: str) -> list[str]:
    """In lines; what would take too many of them is shortened in its middle."""
    end = f" {value.replace(' ', NO_BREAK)}" if value else ""
    longest = LONGEST_LABEL * MOST_LABEL_LINES - len(end)
    while True:
        lines = textwrap.wrap(f"{shortened(name, longest)}{end}", LONGEST_LABEL)
        if len(lines) <= MOST_LABEL_LINES:
            return [line.replace(NO_BREAK, " ") for line in lines]
        longest -= 1


def _label_height(lines: Sequence[str]) -> int:
    return LABEL_GAP + LABEL_LINE * len(lines)


def _x_scale(series: Sequence[Series], is_log: bool, from_zero: bool) -> Scale:
    xs = [x for line in series for x, _ in line.points]
    if is_log:
        return padded_scale(min(xs), max(xs), LEFT, RIGHT, is_log=True)
    return tight_scale(min(0.0, *xs) if from_zero else min(xs), max(xs), LEFT, RIGHT)


def _y_scale(
    series: Sequence[Series], given: tuple[float, float] | None, bottom: float, top: float, is_log: bool
) -> Scale:
    ys = [y for line in series for _, y in line.points if y is not None]
    ends = [end for line in series for band in (line.band, line.range) for _, *pair in band for end in pair]
    if is_log:
        return padded_scale(min(ys), max(ys), bottom, top, is_log=True)
    low, high = given or (min(0.0, *ys, *ends), max(*ys, *ends, ys[0]))
    return full_scale(low, high, bottom, top)


def thinned(points: Sequence[Point], most: int = MOST_POINTS) -> list[Point]:
    """Means over neighbors; one that isn't finite among them leaves its gap."""
    size = max(1, -(-len(points) // most))
    groups = [points[start : start + size] for start in range(0, len(points), size)]
    return [(group[-1][0], _mean([y for _, y in group])) for group in groups]


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if len(known) == len(values) else None


def _mark(x: Scale, y: Scale, at: float, word: str) -> Markup:
    place = x(at)
    to_left = place > (x.begin + x.end) / 2
    label = drawn_text("tick", place + (-4 if to_left else 4), y.end - 9, word, "end" if to_left else "start")
    return rule("mark", place, y.end - 16, place, y.begin) + label


def _band(x: Scale, y: Scale, band: Band, style: str) -> Markup:
    above = [f"{x(at):.1f} {y(high):.1f}" for at, _, high in band]
    below = [f"{x(at):.1f} {y(low):.1f}" for at, low, _ in reversed(band)]
    return Markup('<path class="{}" d="M{}Z"/>').format(style, "L".join(above + below))


def _line(x: Scale, y: Scale, series: Series) -> Markup:
    points = thinned(series.points)
    path, follows = [], False
    for place, (at, value) in enumerate(points):
        if value is None:
            follows = False
            continue
        path.append(f"{'L' if follows else 'M'}{x(at):.1f} {y(value):.1f}")
        if not follows and (place + 1 == len(points) or points[place + 1][1] is None):
            path.append("h0")  # alone between gaps: its round cap shows as a dot
        follows = True
    dots = Markup("").join(
        Markup('<circle cx="{}" cy="{}" r="2.6"/>').format(f"{x(at):.1f}", f"{y(value):.1f}")
        for at, value in points
        if series.has_dots and value is not None and len(points) <= 40
    )
    return Markup('<g class="line {}"><path d="{}"/>{}</g>').format(series.style, "".join(path), dots)


def _labels(y: Scale, series: Sequence[Series], labels: Sequence[Sequence[str]]) -> list[Markup]:
    """Next to each line's end, moved apart where they would overlap."""
    ends = sorted(zip(series, labels, strict=True), key=lambda end: y(end[0].last))
    places: list[float] = []
    least = -math.inf
    for line, lines in ends:
        places.append(max(y(line.last) - LABEL_LINE * (len(lines) - 1) / 2, least))
        least = places[-1] + _label_height(lines)
    limit = y.begin + LABEL_LINE + LABEL_GAP
    for number in reversed(range(len(places))):
        places[number] = min(places[number], limit - _label_height(ends[number][1]))
        limit = places[number]
    return [
        drawn_text(f"name {line.style}", RIGHT + 8, place + 4 + LABEL_LINE * row, text)
        for place, (line, lines) in zip(places, ends, strict=True)
        for row, text in enumerate(lines)
    ]

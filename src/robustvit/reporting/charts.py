"""Line charts as inline SVG; colours come from the page's style sheet by class, so that they follow its theme."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

Point = tuple[float, float | None]
"""Where, and the value there; None leaves a gap."""

WIDTH, HEIGHT = 470, 278
LEFT, RIGHT, TOP, BOTTOM = 46, 112, 22, 42
LABEL_GAP = 15
MOST_POINTS = 300
"""More would be finer than the chart's pixels."""


@dataclass(frozen=True)
class Series:
    name: str
    style: str
    """Classes of the style sheet, such as `robust thin`."""
    points: Sequence[Point]
    has_dots: bool = False

    @property
    def last(self) -> float | None:
        return next((y for _, y in reversed(self.points) if y is not None), None)


@dataclass(frozen=True)
class Axes:
    """From data to the drawing."""

    x_ticks: list[float]
    y_ticks: list[float]
    x_range: tuple[float, float]

    def x(self, value: float) -> float:
        low, high = self.x_range
        return LEFT + (value - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        low, high = self.y_ticks[0], self.y_ticks[-1]
        return HEIGHT - BOTTOM - (value - low) / (high - low) * (HEIGHT - TOP - BOTTOM)


def line_chart(
    title: str,
    series: Sequence[Series],
    *,
    x_title: str,
    y_text: Callable[[float], str],
    y_range: tuple[float, float] | None = None,
    marks: Sequence[tuple[float, str]] = (),
) -> Markup:
    """`marks`: vertical lines with a word, such as where a phase began."""
    drawn = [line for line in series if line.last is not None]
    if not drawn:
        return Markup('<p class="muted">{}: no finite values yet.</p>').format(title)
    axes = _axes(drawn, y_range)
    told = "; ".join(f"{line.name} ends at {y_text(line.last)}" for line in drawn if line.last is not None)
    body = Markup("").join(
        [
            *_grid(axes, x_title, y_text),
            *(_mark(axes, x, word) for x, word in marks),
            *(_line(axes, line) for line in drawn),
            *_labels(axes, drawn),
        ]
    )
    return Markup('<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
        WIDTH, HEIGHT, f"{title}. {told}.", body
    )


def _axes(series: Sequence[Series], y_range: tuple[float, float] | None) -> Axes:
    xs = [x for line in series for x, _ in line.points]
    ys = [y for line in series for _, y in line.points if y is not None]
    low, high = y_range or (min(0.0, *ys), max(ys))
    x_low, x_high = min(0.0, *xs), max(xs)
    if x_high == x_low:
        x_high = x_low + 1
    inside = [tick for tick in ticks(x_low, x_high, 5) if x_low <= tick <= x_high]
    return Axes(inside, ticks(low, high, 5), (x_low, x_high))


def ticks(low: float, high: float, about: int) -> list[float]:
    """Round numbers from at most `low` to at least `high`."""
    span = high - low if high > low else abs(high) or 1.0
    rough = span / about
    scale = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * scale for factor in (1, 2, 5, 10) if factor * scale >= rough * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(max(high, low + step) / step - 1e-9)
    return [number * step for number in range(first, last + 1)]


def thinned(points: Sequence[Point], most: int = MOST_POINTS) -> list[Point]:
    """Means over neighbours; one that isn't finite among them leaves its gap."""
    size = -(-len(points) // most)
    groups = [points[start : start + size] for start in range(0, len(points), size)] if size > 1 else []
    if not groups:
        return list(points)
    return [(group[-1][0], _mean([y for _, y in group])) for group in groups]


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if len(known) == len(values) else None


def _grid(axes: Axes, x_title: str, y_text: Callable[[float], str]) -> list[Markup]:
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    parts = []
    for tick in axes.y_ticks:
        y = f"{axes.y(tick):.1f}"
        parts.append(Markup('<line class="grid" x1="{}" x2="{}" y1="{}" y2="{}"/>').format(LEFT, right, y, y))
        parts.append(
            Markup('<text class="tick" x="{}" y="{}" dy=".35em" text-anchor="end">{}</text>').format(
                LEFT - 7, y, y_text(tick)
            )
        )
    for tick in axes.x_ticks:
        x = f"{axes.x(tick):.1f}"
        parts.append(Markup('<line class="axis" x1="{}" x2="{}" y1="{}" y2="{}"/>').format(x, x, bottom, bottom + 4))
        parts.append(
            Markup('<text class="tick" x="{}" y="{}" text-anchor="middle">{}</text>').format(
                x, bottom + 18, count_text(tick)
            )
        )
    parts.append(Markup('<line class="axis" x1="{}" x2="{}" y1="{}" y2="{}"/>').format(LEFT, right, bottom, bottom))
    middle = (LEFT + right) / 2
    parts.append(
        Markup('<text class="tick" x="{}" y="{}" text-anchor="middle">{}</text>').format(middle, HEIGHT - 6, x_title)
    )
    return parts


def _mark(axes: Axes, x: float, word: str) -> Markup:
    at = f"{axes.x(x):.1f}"
    return Markup(
        '<line class="mark" x1="{}" x2="{}" y1="{}" y2="{}"/><text class="tick" x="{}" y="{}" dx="4">{}</text>'
    ).format(at, at, TOP - 14, HEIGHT - BOTTOM, at, TOP - 7, word)


def _line(axes: Axes, series: Series) -> Markup:
    points = thinned(series.points)
    path, follows = [], False
    for place, (x, y) in enumerate(points):
        if y is None:
            follows = False
            continue
        path.append(f"{'L' if follows else 'M'}{axes.x(x):.1f} {axes.y(y):.1f}")
        if not follows and (place + 1 == len(points) or points[place + 1][1] is None):
            path.append("h0")  # alone between gaps: its round cap shows as a dot
        follows = True
    dots = Markup("").join(
        Markup('<circle cx="{}" cy="{}" r="2.6"/>').format(f"{axes.x(x):.1f}", f"{axes.y(y):.1f}")
        for x, y in points
        if series.has_dots and y is not None and len(points) <= 40
    )
    return Markup('<g class="line {}"><path d="{}"/>{}</g>').format(series.style, "".join(path), dots)


def _labels(axes: Axes, series: Sequence[Series]) -> list[Markup]:
    """Each line's name at its end, moved apart where they would overlap."""
    ends = sorted(((axes.y(line.last), line) for line in series if line.last is not None), key=lambda end: end[0])
    lowest = HEIGHT - BOTTOM
    places: list[float] = []
    for y, _ in ends:
        places.append(max(y, places[-1] + LABEL_GAP) if places else y)
    for number in reversed(range(len(places))):
        limit = lowest if number + 1 == len(places) else places[number + 1] - LABEL_GAP
        places[number] = min(places[number], limit)
    return [
        Markup('<text class="name {}" x="{}" y="{}" dy=".35em">{}</text>').format(
            line.style, WIDTH - RIGHT + 8, f"{place:.1f}", line.name
        )
        for place, (_, line) in zip(places, ends, strict=True)
    ]


def count_text(value: float) -> str:
    """`800`, `12k`, `1.5M`."""
    if abs(value) >= 1e6:
        return f"{value / 1e6:g}M"
    return f"{value / 1e3:g}k" if abs(value) >= 1e4 else f"{value:g}"

"""Line charts as inline SVG; colors come from the page's style sheet by class, so that they follow its theme."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

Point = tuple[float, float | None]
"""Where, and the value there; None leaves a gap."""

WIDTH, HEIGHT = 420, 250
LEFT, TOP, BOTTOM = 42, 20, 40
LABEL_GAP, LETTER, LONGEST_LABEL = 14, 6.9, 21
"""Between the baselines of labels; the mean width of a letter; letters of a label."""
RIGHT = WIDTH - 10 - LETTER * LONGEST_LABEL
"""Where the plot ends: the same in every chart, so that those in a column align."""
MOST_POINTS = 300
"""More would be finer than the chart's pixels."""


TONES = 6
"""Colors in the style sheet; the seventh line reuses the first."""


def tone(place: int) -> str:
    return f"tone-{place % TONES + 1}"


@dataclass(frozen=True)
class Series:
    name: str
    style: str
    """Classes of the style sheet, such as `robust thin`."""
    points: Sequence[Point]
    band: Sequence[tuple[float, float, float]] = ()
    """(x, low, high) of an interval around the line."""
    has_dots: bool = False

    @property
    def last(self) -> float:
        return next(y for _, y in reversed(self.points) if y is not None)

    @property
    def has_values(self) -> bool:
        return any(y is not None for _, y in self.points)


@dataclass(frozen=True)
class Axes:
    """From data to the drawing."""

    x_ticks: list[float]
    y_ticks: list[float]
    x_range: tuple[float, float]
    right: float
    bottom: float

    def x(self, value: float) -> float:
        low, high = self.x_range
        return LEFT + (value - low) / (high - low) * (self.right - LEFT)

    def y(self, value: float) -> float:
        low, high = self.y_ticks[0], self.y_ticks[-1]
        return self.bottom - (value - low) / (high - low) * (self.bottom - TOP)

    def at(self, x: float, y: float) -> str:
        return f"{self.x(x):.1f} {self.y(y):.1f}"


def line_chart(
    title: str,
    series: Sequence[Series],
    *,
    x_title: str,
    y_text: Callable[[float], str],
    y_range: tuple[float, float] | None = None,
    marks: Sequence[tuple[float, str]] = (),
    has_values: bool = True,
) -> Markup:
    """Each line is labeled at its end with its name and last value; `marks` are vertical lines with a word."""
    drawn = [line for line in series if line.has_values]
    if not drawn:
        return Markup('<p class="note">{}: no finite values yet.</p>').format(title)
    labels = [_label(line.name, y_text(line.last) if has_values else "") for line in drawn]
    height = max(HEIGHT, TOP + BOTTOM + LABEL_GAP * len(drawn))
    axes = _axes(drawn, y_range, right=RIGHT, bottom=height - BOTTOM)
    parts = [
        *_grid(axes, x_title, y_text),
        *(_mark(axes, x, word) for x, word in marks if axes.x_range[0] <= x <= axes.x_range[1]),
        *(_band(axes, line) for line in drawn if line.band),
        *(_line(axes, line) for line in drawn),
        *_labels(axes, drawn, labels),
    ]
    return svg(height, f"{title}. {'At the end' if has_values else 'Lines'}: {', '.join(labels)}.", parts)


def _label(name: str, value: str) -> str:
    return f"{shortened(name, LONGEST_LABEL - len(value) - bool(value))} {value}".rstrip()


def svg(height: float, label: str, parts: Sequence[Markup]) -> Markup:
    return Markup('<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
        WIDTH, f"{height:.0f}", label, Markup("").join(parts)
    )


def _axes(series: Sequence[Series], y_range: tuple[float, float] | None, right: float, bottom: float) -> Axes:
    xs = [x for line in series for x, _ in line.points]
    ys = [y for line in series for _, y in line.points if y is not None]
    low, high = y_range or (min(0.0, *ys), max(ys))
    x_low, x_high = min(0.0, *xs), max(xs)
    if x_high == x_low:
        x_high = x_low + 1
    inside = [tick for tick in ticks(x_low, x_high, 5) if tick <= x_high * (1 + 1e-9)]
    return Axes(inside, ticks(low, high, 5), (x_low, x_high), right, bottom)


def ticks(low: float, high: float, about: int) -> list[float]:
    """Round numbers from at most `low` to at least `high`."""
    span = high - low if high > low else abs(high) or 1.0
    rough = span / about
    scale = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * scale for factor in (1, 2, 5, 10) if factor * scale >= rough * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(max(high, low + step) / step - 1e-9)
    return [number * step for number in range(first, last + 1)]


def thinned(points: Sequence[Point], most: int = MOST_POINTS) -> list[Point]:
    """Means over neighbors; one that isn't finite among them leaves its gap."""
    size = max(1, -(-len(points) // most))
    groups = [points[start : start + size] for start in range(0, len(points), size)]
    return [(group[-1][0], _mean([y for _, y in group])) for group in groups]


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if len(known) == len(values) else None


def shortened(name: str, longest: int) -> str:
    half = longest // 2
    return name if len(name) <= longest else f"{name[:half]}…{name[1 - half :]}"


def drawn_text(style: str, x: float, y: float, text: str, anchor: str = "start") -> Markup:
    return Markup('<text class="{}" x="{}" y="{}" text-anchor="{}">{}</text>').format(
        style, f"{x:.1f}", f"{y:.1f}", anchor, text
    )


def rule(style: str, x1: float, y1: float, x2: float, y2: float) -> Markup:
    return Markup('<path class="{}" d="M{} {}L{} {}"/>').format(style, *(f"{end:.1f}" for end in (x1, y1, x2, y2)))


def _grid(axes: Axes, x_title: str, y_text: Callable[[float], str]) -> list[Markup]:
    parts = []
    for tick in axes.y_ticks:
        y = axes.y(tick)
        parts.append(rule("axis" if tick == axes.y_ticks[0] else "grid", LEFT, y, axes.right, y))
        parts.append(drawn_text("tick", LEFT - 7, y + 4, y_text(tick), "end"))
    for tick in axes.x_ticks:
        x = axes.x(tick)
        parts.append(rule("axis", x, axes.bottom, x, axes.bottom + 4))
        parts.append(drawn_text("tick", x, axes.bottom + 17, count_text(tick), "middle"))
    return [*parts, drawn_text("tick", (LEFT + axes.right) / 2, axes.bottom + 34, x_title, "middle")]


def _mark(axes: Axes, x: float, word: str) -> Markup:
    at = axes.x(x)
    to_left = at > (LEFT + axes.right) / 2
    label = drawn_text("tick", at + (-4 if to_left else 4), TOP - 9, word, "end" if to_left else "start")
    return rule("mark", at, TOP - 16, at, axes.bottom) + label


def _band(axes: Axes, series: Series) -> Markup:
    above = [axes.at(x, high) for x, _, high in series.band]
    below = [axes.at(x, low) for x, low, _ in reversed(series.band)]
    return Markup('<path class="band {}" d="M{}Z"/>').format(series.style, "L".join(above + below))


def _line(axes: Axes, series: Series) -> Markup:
    points = thinned(series.points)
    path, follows = [], False
    for place, (x, y) in enumerate(points):
        if y is None:
            follows = False
            continue
        path.append(f"{'L' if follows else 'M'}{axes.at(x, y)}")
        if not follows and (place + 1 == len(points) or points[place + 1][1] is None):
            path.append("h0")  # alone between gaps: its round cap shows as a dot
        follows = True
    dots = Markup("").join(
        Markup('<circle cx="{}" cy="{}" r="2.6"/>').format(f"{axes.x(x):.1f}", f"{axes.y(y):.1f}")
        for x, y in points
        if series.has_dots and y is not None and len(points) <= 40
    )
    return Markup('<g class="line {}"><path d="{}"/>{}</g>').format(series.style, "".join(path), dots)


def _labels(axes: Axes, series: Sequence[Series], labels: Sequence[str]) -> list[Markup]:
    """Next to each line's end, moved apart where they would overlap."""
    ends = sorted(zip(series, labels, strict=True), key=lambda end: axes.y(end[0].last))
    places: list[float] = []
    for line, _ in ends:
        y = axes.y(line.last)
        places.append(max(y, places[-1] + LABEL_GAP) if places else y)
    limit = axes.bottom
    for number in reversed(range(len(places))):
        places[number] = min(places[number], limit)
        limit = places[number] - LABEL_GAP
    return [
        drawn_text(f"name {line.style}", axes.right + 8, place + 4, label)
        for place, (line, label) in zip(places, ends, strict=True)
    ]


def count_text(value: float) -> str:
    """`800`, `12k`, `1.5M`."""
    if abs(value) >= 1e6:
        return f"{value / 1e6:g}M"
    return f"{value / 1e3:g}k" if abs(value) >= 1e4 else f"{value:g}"


LONGEST_ROW, GAP, PADDING = 24, 9, 12
"""Letters of a row's name; between the dots of a row; between rows."""
LEGEND = 18


def dot_chart(
    title: str,
    rows: Sequence[str],
    series: Sequence[Series],
    *,
    x_title: str,
    x_text: Callable[[float], str],
    least_end: float = 0.0,
) -> Markup:
    """A series is a color, with a point for each row that it has a value in; the axis runs from 0.

    It ends at `least_end` or above.
    """
    known = [line for line in series if line.has_values]
    if not known:
        return Markup('<p class="note">{}: no finite values yet.</p>').format(title)
    names = [shortened(name, LONGEST_ROW) for name in rows]
    left = 12 + LETTER * max(map(len, names))
    dots = [
        (place, line, int(at), value)
        for place, line in enumerate(known)
        for at, value in line.points
        if value is not None
    ]
    ends = [least_end, *(value for *_, value in dots), *(high for line in known for _, _, high in line.band)]
    marks = ticks(0.0, max(ends), 5)
    right = WIDTH - 16.0

    def x(value: float) -> float:
        return left + value / marks[-1] * (right - left)

    legend, top = _legend(known)
    height = PADDING + GAP * len(known)
    bottom = top + height * len(rows)
    parts = [*legend]
    for tick in marks:
        parts.append(rule("axis" if tick == 0 else "grid", x(tick), top, x(tick), bottom))
        parts.append(drawn_text("tick", x(tick), bottom + 15, x_text(tick), "middle"))
    parts.append(drawn_text("tick", (left + right) / 2, bottom + 32, x_title, "middle"))
    for number, name in enumerate(names):
        parts.append(drawn_text("tick", left - 8, top + height * (number + 0.5) + 4, name, "end"))
    for place, line, row, value in dots:
        y = top + height * row + PADDING / 2 + GAP * (place + 0.5)
        whisker = [x(end) for at, *interval in line.band if int(at) == row for end in interval]
        parts.append(_dot(line, rows[row], x(value), y, x_text(value), whisker))
    values = "; ".join(f"{rows[row]}, {line.name} {x_text(value)}" for _, line, row, value in dots)
    return svg(bottom + BOTTOM, f"{title}. {values}.", parts)


def _legend(series: Sequence[Series]) -> tuple[list[Markup], float]:
    """Names in their colors, and where the rows begin."""
    parts, x, y = [], 4.0, 12.0
    for line in series:
        width = 16 + LETTER * len(line.name)
        if x > 4 and x + width > WIDTH:
            x, y = 4.0, y + LEGEND
        parts.append(drawn_text(f"name {line.style}", x, y, f"● {line.name}"))
        x += width + 12
    return parts, y + 10


def _dot(line: Series, row: str, x: float, y: float, text: str, ends: Sequence[float]) -> Markup:
    whisker = Markup('<path d="M{} {}H{}"/>').format(f"{ends[0]:.1f}", f"{y:.1f}", f"{ends[1]:.1f}") if ends else ""
    return Markup('<g class="line thin {}"><title>{}</title>{}<circle cx="{}" cy="{}" r="3.4"/></g>').format(
        line.style, f"{row}, {line.name}: {text}", whisker, f"{x:.1f}", f"{y:.1f}"
    )

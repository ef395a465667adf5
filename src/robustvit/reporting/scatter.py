"""Scatter plots as inline SVG: groups of points in colors, with names, intervals and fitted lines."""

import math
from collections.abc import Iterator, Sequence

from markupsafe import Markup

from robustvit.core.figures import Chart, Fit, Line
from robustvit.core.numbers import short_count
from robustvit.reporting.axes import (
    LETTER,
    RADIUS,
    WIDTH,
    Scale,
    Text,
    drawn_text,
    grid,
    legend,
    nothing,
    padded_scale,
    percent_text,
    radius_of,
    shortened,
    svg,
    tone,
)

PLOT, BOTTOM, LEFT, RIGHT = 230, 40, 46, WIDTH - 12
LONGEST = 24
"""Letters of a point's name."""
Box = tuple[float, float, float, float]
"""Left, top, right, bottom."""


def scatter_chart(chart: Chart) -> Markup:
    """Each line of the chart is a group in a color of its own."""
    points = [(x, y) for line in chart.lines for x, y in zip(line.xs, line.ys, strict=True) if y is not None]
    if not points:
        return nothing(chart.title)
    x_text = percent_text if chart.x_in_percent else short_count
    y_text = percent_text if chart.in_percent else "{:.3g}".format
    styled = [(line, tone(place)) for place, line in enumerate(chart.lines) if any(y is not None for y in line.ys)]
    named = [(_name(line), style) for line, style in styled]
    parts, top = legend(named) if len(styled) > 1 or styled[0][0].fit else ([], 4.0)
    if chart.y_title:
        parts.append(drawn_text("tick", 0, top + 8, chart.y_title))
        top += 18
    ends = [end for line in chart.lines for pair in line.intervals for end in pair if end > 0 or not chart.y_log]
    ys = [*(y for _, y in points), *ends]
    sides = [end for line in chart.lines for pair in line.x_intervals for end in pair if end > 0 or not chart.x_log]
    xs = [*(x for x, _ in points), *sides]
    x = padded_scale(min(xs), max(xs), LEFT, RIGHT, chart.x_log)
    y = padded_scale(min(ys), max(ys), top + PLOT, top, chart.y_log)
    parts += grid(x, y, chart.x_title, x_text, y_text)
    parts += [_fitted(x, y, line, line.fit, style) for line, style in styled if line.fit is not None]
    parts += [_joined(x, y, line, style) for line, style in styled if line.joined]
    placed = [one for line, style in styled for one in _points(x, y, line, style, chart.lines, (x_text, y_text))]
    parts += [drawn for drawn, *_ in placed]
    names = [(name, style, box) for _, name, style, box in placed]
    whiskers = [box for line, _ in styled for box in _whisker_boxes(x, y, line)]
    parts += point_names(names, (LEFT, top, WIDTH, top + PLOT), whiskers)
    spoken = "; ".join(_spoken(line, x_text, y_text) for line, _ in styled)
    return svg(top + PLOT + BOTTOM, f"{chart.title}. {spoken}.", parts)


def fit_text(fit: Fit) -> str:
    """`slope -0.31 (-0.35 to -0.27)`."""
    ends = "" if fit.interval is None else f" ({fit.interval[0]:.2f} to {fit.interval[1]:.2f})"
    return f"slope {fit.slope:.2f}{ends}"


def _name(line: Line) -> str:
    return f"{line.name}, {fit_text(line.fit)}" if line.fit is not None else line.name


def _spoken(line: Line, x_text: Text, y_text: Text) -> str:
    labels = line.labels or ("",) * len(line.xs)
    known = [point for point in zip(labels, line.xs, line.ys, strict=True) if point[2] is not None]
    return f"{_name(line)}: " + ", ".join(f"{label} {x_text(x)} {y_text(y or 0)}".strip() for label, x, y in known)


def _points(
    x: Scale, y: Scale, line: Line, style: str, lines: Sequence[Line], texts: tuple[Text, Text]
) -> Iterator[tuple[Markup, str, str, Box]]:
    """Each point as it is drawn, with its name, style and the place it takes."""
    most = max((size for one in lines for size in one.sizes), default=0.0)
    for number, (at, value) in enumerate(zip(line.xs, line.ys, strict=True)):
        if value is None:
            continue
        if line.sizes and line.sizes[number] == 0:  # a place on a line, which others have a marker for
            continue
        radius = radius_of(line.sizes[number], most) if line.sizes else RADIUS
        label = line.labels[number] if line.labels else ""
        said = ", ".join(filter(None, (line.name, label, texts[0](at), texts[1](value))))
        whiskers = _whisker(x, y, at, line.ranges, number, ' class="range"')
        whiskers += _whisker(x, y, at, line.intervals, number, "")
        if line.x_intervals:
            low, high = line.x_intervals[number]
            whiskers += Markup('<path d="M{} {}H{}"/>').format(f"{x(low):.1f}", f"{y(value):.1f}", f"{x(high):.1f}")
        left, top = x(at), y(value)
        drawn = Markup('<g class="line point {}"><title>{}</title>{}<circle cx="{}" cy="{}" r="{}"/></g>').format(
            style, said, whiskers, f"{left:.1f}", f"{top:.1f}", f"{radius:.1f}"
        )
        yield drawn, label, style, (left - radius, top - radius, left + radius, top + radius)


def _whisker(x: Scale, y: Scale, at: float, pairs: Sequence[tuple[float, float]], number: int, style: str) -> Markup:
    if not pairs:
        return Markup("")
    low, high = pairs[number]
    return Markup('<path{} d="M{} {}V{}"/>').format(Markup(style), f"{x(at):.1f}", f"{y(low):.1f}", f"{y(high):.1f}")


def _whisker_boxes(x: Scale, y: Scale, line: Line) -> Iterator[Box]:
    """The places that intervals take, which names should leave free."""
    for number, (at, value) in enumerate(zip(line.xs, line.ys, strict=True)):
        if value is not None and line.intervals:
            low, high = line.intervals[number]
            yield x(at) - 1, y(high), x(at) + 1, y(low)
        if value is not None and line.x_intervals:
            low, high = line.x_intervals[number]
            yield x(low), y(value) - 1, x(high), y(value) + 1


def _joined(x: Scale, y: Scale, line: Line, style: str) -> Markup:
    """From point to point."""
    known = [(at, value) for at, value in zip(line.xs, line.ys, strict=True) if value is not None]
    path = "L".join(f"{x(at):.1f} {y(value):.1f}" for at, value in known)
    return Markup('<path class="fit {}" d="M{}"/>').format(style, path)


def _fitted(x: Scale, y: Scale, line: Line, fit: Fit, style: str) -> Markup:
    """From the first to the last point of the group."""
    ends = []
    for at in (min(line.xs), max(line.xs)):
        value = fit.intercept + fit.slope * (math.log10(at) if x.is_log else at)
        ends.append(f"{x(at):.1f} {y(10**value if y.is_log else value):.1f}")
    return Markup('<path class="fit {}" d="M{}"/>').format(style, "L".join(ends))


def point_names(points: Sequence[tuple[str, str, Box]], frame: Box, whiskers: Sequence[Box] = ()) -> list[Markup]:
    """Next to its point, where it covers no point, whisker or other name; else the point has its title alone."""
    taken = [*(box for *_, box in points), *whiskers]
    drawn = []
    for name, style, (left, top, right, bottom) in points:
        if not name:
            continue
        text = shortened(name, LONGEST)
        width, middle, center = 0.9 * LETTER * len(text), (top + bottom) / 2, (left + right) / 2
        places: tuple[tuple[str, float, float], ...] = (
            ("start", right + 3, middle),
            ("end", left - 3, middle),
            ("middle", center, top - 8),
            ("middle", center, bottom + 8),
            ("start", right, top - 4),
            ("end", left, bottom + 4),
            ("end", left, top - 4),
            ("start", right, bottom + 4),
        )
        for anchor, at, y in places:
            begin = at - {"start": 0.0, "end": width, "middle": width / 2}[anchor]
            box = (begin, y - 6, begin + width, y + 6)
            if _is_inside(box, frame) and not any(_overlap(box, other) for other in taken):
                taken.append(box)
                drawn.append(drawn_text(f"name {style}", at, y + 4, text, anchor))
                break
    return drawn


def _is_inside(box: Box, frame: Box) -> bool:
    return box[0] >= frame[0] and box[1] >= frame[1] and box[2] <= frame[2] and box[3] <= frame[3]


def _overlap(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]

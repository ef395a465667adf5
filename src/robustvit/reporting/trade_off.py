"""Clean against robust accuracy as inline SVG: models of this page in front of published ones, colored by year."""

from collections.abc import Sequence

from markupsafe import Markup

from robustvit.core.result import Measure
from robustvit.reporting.axes import drawn_text, grid, padded_scale, percent_text, svg
from robustvit.reporting.colors import ordered_colors
from robustvit.reporting.entries import Entry
from robustvit.reporting.scatter import Box, point_names

WIDTH, PLOT, LEFT, BOTTOM = 760.0, 380.0, 46.0, 40.0
SMALL, LARGE = 3.4, 5.2
"""Radii of published and own points."""
NO_YEAR = ("#888888", "#888888")
LEGEND = 62.0
"""Between two years of the legend."""


def trade_off_chart(title: str, entries: Sequence[Entry]) -> Markup:
    """Own points are filled where their protocol is the published one's, and hollow elsewhere."""
    shown = [one for one in entries if one.clean is not None and one.robust is not None]
    own, others = [one for one in shown if one.is_here], [one for one in shown if not one.is_here]
    parts, top = _legend(others)
    parts.append(drawn_text("tick", 0, top + 8, "robust accuracy"))
    top += 18
    xs = [end for one in shown for end in (_value(one.clean), *_ends(one.clean))]
    ys = [end for one in shown for end in (_value(one.robust), *_ends(one.robust))]
    x = padded_scale(min(xs), max(xs), LEFT, WIDTH - 12)
    y = padded_scale(min(ys), max(ys), top + PLOT, top)
    parts += grid(x, y, "clean accuracy", percent_text, percent_text)
    colors = _colors(others)
    boxes: list[tuple[str, str, Box]] = []
    for one in (*others, *own):
        clean, robust = _value(one.clean), _value(one.robust)
        at, level, radius = x(clean), y(robust), LARGE if one.is_here else SMALL
        said = ", ".join(
            (one.name, one.threat, *one.remarks, f"clean {clean:.1%}", f"robust {robust:.1%}", *one.differs)
        )
        place = (f"{at:.1f}", f"{level:.1f}", f"{radius:.1f}")
        if not one.is_here:
            dot = '<g class="published"><title>{}</title>{}</g>'
            parts.append(Markup(dot).format(said, _dot(*place, colors[one.year])))
        else:
            style = "hollow" if one.differs else "whole"
            (left, right), (low, high) = _ends(one.clean), _ends(one.robust)
            whiskers = Markup('<path d="M{} {}H{}M{} {}V{}"/>').format(
                f"{x(left):.1f}", place[1], f"{x(right):.1f}", place[0], f"{y(low):.1f}", f"{y(high):.1f}"
            )
            dot = '<g class="line own {} tone-1"><title>{}</title>{}<circle cx="{}" cy="{}" r="{}"/></g>'
            parts.append(Markup(dot).format(style, said, whiskers, *place))
            ends = (min(x(left), at - radius), y(high) - radius, max(x(right), at + radius), y(low) + radius)
            boxes.append((one.name, "own tone-1", ends))  # a name covers no bar, either
    parts += point_names(boxes, (LEFT, top, WIDTH, top + PLOT))
    spoken = "; ".join(f"{one.name}: clean {_value(one.clean):.1%}, robust {_value(one.robust):.1%}" for one in own)
    label = f"{title}. {spoken}; and {len(others)} published models."
    return svg(top + PLOT + BOTTOM, label, parts, WIDTH)


def _value(measure: Measure | None) -> float:
    assert measure is not None, "only models with both accuracies are drawn"
    return measure.value


def _ends(measure: Measure | None) -> tuple[float, float]:
    assert measure is not None, "only models with both accuracies are drawn"
    return measure.interval or (measure.value, measure.value)


def _colors(others: Sequence[Entry]) -> dict[int | None, tuple[str, str]]:
    """Of each year that occurs, on a light and on a dark page; later years stand out more. Without a year, gray."""
    years = sorted({one.year for one in others if one.year is not None})
    pairs = zip(ordered_colors(len(years), "light"), ordered_colors(len(years), "dark"), strict=True)
    return {**dict(zip(years, pairs, strict=True)), None: NO_YEAR}


def _dot(x: str, y: str, radius: str, colors: tuple[str, str]) -> Markup:
    """The style sheet chooses the color of the page."""
    circle = '<circle class="year" cx="{}" cy="{}" r="{}" style="--light:{};--dark:{}"/>'
    return Markup(circle).format(x, y, radius, *colors)


def _legend(others: Sequence[Entry]) -> tuple[list[Markup], float]:
    parts = [drawn_text("name tone-1", 4, 12, "● this page   ○ another protocol")]
    years = sorted({one.year for one in others if one.year is not None})
    colors = _colors(others)
    for place, year in enumerate([*years, *([None] if any(one.year is None for one in others) else [])]):
        at = 236.0 + LEGEND * (place % 8)
        level = 12.0 + 18 * (place // 8)
        parts.append(_dot(f"{at:.1f}", f"{level - 4:.1f}", "4", colors[year]))
        parts.append(drawn_text("tick", at + 8, level, "no year" if year is None else str(year)))
    return parts, 22.0 + 18 * max(0, (len(years) - 1) // 8)

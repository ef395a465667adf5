"""Charts of dots in named rows, as inline SVG."""

from collections.abc import Sequence

from markupsafe import Markup

from robustvit.reporting.axes import (
    LETTER,
    WIDTH,
    Text,
    drawn_text,
    full_scale,
    legend,
    nothing,
    rule,
    shortened,
    svg,
)
from robustvit.reporting.charts import BOTTOM, Series

LONGEST_ROW, GAP, PADDING = 24, 9, 12
"""Letters of a row's name; between the dots of a row; between rows."""


def dot_chart(title: str, rows: Sequence[str], series: Sequence[Series], *, x_title: str, x_text: Text) -> Markup:
    """A series is a color, with a point for each row that it has a value in; the axis runs from 0."""
    known = [line for line in series if line.has_values]
    if not known:
        return nothing(title)
    names = [shortened(name, LONGEST_ROW) for name in rows]
    left = 12 + LETTER * max(map(len, names))
    dots = [
        (place, line, int(at), value)
        for place, line in enumerate(known)
        for at, value in line.points
        if value is not None
    ]
    ends = [value for *_, value in dots] + [high for line in known for _, _, high in (*line.band, *line.range)]
    x = full_scale(0.0, max(ends), left, WIDTH - 16.0)
    parts, top = legend([(line.name, line.style) for line in known])
    height = PADDING + GAP * len(known)
    bottom = top + height * len(rows)
    for tick in x.ticks:
        parts.append(rule("axis" if tick == 0 else "grid", x(tick), top, x(tick), bottom))
        parts.append(drawn_text("tick", x(tick), bottom + 15, x_text(tick), "middle"))
    parts.append(drawn_text("tick", (x.begin + x.end) / 2, bottom + 32, x_title, "middle"))
    for number, name in enumerate(names):
        parts.append(drawn_text("tick", left - 8, top + height * (number + 0.5) + 4, name, "end"))
    for place, line, row, value in dots:
        y = top + height * row + PADDING / 2 + GAP * (place + 0.5)
        pairs = ([x(end) for at, *pair in ends if int(at) == row for end in pair] for ends in (line.band, line.range))
        parts.append(_dot(line, f"{rows[row]}, {line.name}: {x_text(value)}", x(value), y, *pairs))
    values = "; ".join(f"{rows[row]}, {line.name} {x_text(value)}" for _, line, row, value in dots)
    return svg(bottom + BOTTOM, f"{title}. {values}.", parts)


def _dot(line: Series, text: str, x: float, y: float, band: Sequence[float], span: Sequence[float]) -> Markup:
    whiskers = Markup("").join(
        Markup('<path{} d="M{} {}H{}"/>').format(style, f"{ends[0]:.1f}", f"{y:.1f}", f"{ends[1]:.1f}")
        for style, ends in ((Markup(' class="range"'), span), (Markup(""), band))
        if ends
    )
    return Markup('<g class="line thin {}"><title>{}</title>{}<circle cx="{}" cy="{}" r="3.4"/></g>').format(
        line.style, text, whiskers, f"{x:.1f}", f"{y:.1f}"
    )

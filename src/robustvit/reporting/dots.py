"""Charts of dots in named rows, as inline SVG."""

from collections.abc import Sequence

from markupsafe import Markup

from robustvit.reporting.axes import (
    LARGEST,
    LETTER,
    RADIUS,
    WIDTH,
    Scale,
    Text,
    drawn_text,
    full_scale,
    legend,
    nothing,
    radius_of,
    rule,
    shortened,
    svg,
)
from robustvit.reporting.charts import BOTTOM, Series

LONGEST_ROW, GAP, SIZED_GAP, PADDING = 24, 9, 20, 12
"""Letters of a row's name; between the dots of a row, also where areas tell sizes; between rows."""


def dot_chart(
    title: str,
    rows: Sequence[str],
    series: Sequence[Series],
    *,
    x_title: str,
    x_text: Text,
    least_end: float = 0.0,
) -> Markup:
    """A series is a color, with points in the rows that it has values in; the axis ends at `least_end` or later."""
    known = [line for line in series if line.has_values]
    if not known:
        return nothing(title)
    names = [shortened(name, LONGEST_ROW) for name in rows]
    most = max((size for line in known for size in line.sizes), default=0.0)
    room = LARGEST + 4 if most else 8.0  # for a marker at 0
    left = 4 + room + LETTER * max(map(len, names))
    values = [value for line in known for _, value in line.points if value is not None]
    ends = values + [end for line in known for _, *pair in (*line.band, *line.range) for end in pair]
    x = full_scale(min(0.0, *ends), max(least_end, *ends), left, WIDTH - 16.0)
    parts, top = legend([(line.name, line.style) for line in known])
    gap = SIZED_GAP if most else GAP
    height = PADDING + gap * len(known)
    bottom = top + height * len(rows)
    for tick in x.ticks:
        parts.append(rule("axis" if tick == 0 else "grid", x(tick), top, x(tick), bottom))
        parts.append(drawn_text("tick", x(tick), bottom + 15, x_text(tick), "middle"))
    parts.append(drawn_text("tick", (x.begin + x.end) / 2, bottom + 32, x_title, "middle"))
    for number, name in enumerate(names):
        parts.append(drawn_text("tick", left - room, top + height * (number + 0.5) + 4, name, "end"))
    spoken = []
    for place, line in enumerate(known):
        for number, (row, value) in enumerate(line.points):
            if value is None:
                continue
            said = ", ".join((rows[int(row)], line.name, *line.labels[number : number + 1]))
            spoken.append(f"{said} {x_text(value)}")
            y = top + height * row + PADDING / 2 + gap * (place + 0.5)
            radius = radius_of(line.sizes[number], most) if line.sizes else RADIUS
            parts.append(_dot(line, number, f"{said}: {x_text(value)}", x, y, radius))
    return svg(bottom + BOTTOM, f"{title}. {'; '.join(spoken)}.", parts)


def _dot(line: Series, number: int, text: str, x: Scale, y: float, radius: float) -> Markup:
    whiskers = Markup("").join(
        Markup('<path{} d="M{} {}H{}"/>').format(
            style, f"{x(band[number][1]):.1f}", f"{y:.1f}", f"{x(band[number][2]):.1f}"
        )
        for style, band in ((Markup(' class="range"'), line.range), (Markup(""), line.band))
        if band
    )
    style, at = f"{'point' if line.sizes else 'thin'} {line.style}", x(line.points[number][1] or 0.0)
    return Markup('<g class="line {}"><title>{}</title>{}<circle cx="{}" cy="{}" r="{}"/></g>').format(
        style, text, whiskers, f"{at:.1f}", f"{y:.1f}", f"{radius:.1f}"
    )

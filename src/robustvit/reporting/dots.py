"""Values as dots in named rows, with whiskers where chance has a part in them: inline SVG, styled by the page."""

from collections.abc import Callable, Sequence

from markupsafe import Markup

from robustvit.reporting.charts import BOTTOM, LETTER, WIDTH, Series, drawn_text, rule, shortened, svg, ticks

LONGEST_ROW, GAP, PADDING = 24, 9, 12
"""Letters of a row's name; between the dots of a row; between rows."""
LEGEND = 18


def dot_chart(
    title: str, rows: Sequence[str], series: Sequence[Series], *, x_title: str, x_text: Callable[[float], str]
) -> Markup:
    """A series is a color, with a point for each row that it has a value in; the axis runs from 0."""
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
    ends = [value for *_, value in dots] + [high for line in known for _, _, high in line.band]
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

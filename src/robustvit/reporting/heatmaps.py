"""Heat maps as inline SVG: colored cells with numbers, or a single picture where there are very many."""

import base64
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup
from PIL import Image

from robustvit.core.figures import Heatmap
from robustvit.reporting.axes import LETTER, WIDTH, Text, drawn_text, nothing, percent_text, shortened, svg
from robustvit.reporting.colors import COLORS, color_indices, color_table, hex_color, ink_on

MOST_CELLS = 400
"""More are drawn as a picture."""
WIDE, NARROW_COLUMNS = 880, 12
"""A map of more columns takes the width of the page."""
CELL_HEIGHT, WIDEST_CELL = 22.0, 64.0
FINE, NUMBERED = 34, 15
"""Widths from which a cell has room for numbers with a decimal, and for any."""
LONGEST_NAME = 18
"""Letters of a name."""
SINE, COSINE = 0.643, 0.766
"""Of 40 degrees, the slant of long names."""
LARGEST_SIDE = 400
"""Of a picture, in cells and in units of the drawing."""
BAR, BAR_PARTS = 120.0, 24


@dataclass(frozen=True)
class Layout:
    """Where the cells are, and the names around them."""

    rows: list[str]
    columns: list[str]
    corner: list[str]
    """Titles of columns and rows."""
    is_slanted: bool
    """Whether the columns' names are too long to be written one after the other."""
    width: float
    left: float
    top: float
    cell_width: float
    cell_height: float

    @property
    def bottom(self) -> float:
        return self.top + self.cell_height * len(self.rows)


def heatmap(chart: Heatmap, matrix: np.ndarray) -> Markup:
    """A (rows, columns) matrix; what isn't finite is an empty cell."""
    if not np.isfinite(matrix).any():
        return nothing(chart.title)
    layout = _layout(chart, matrix.shape)
    limits, text = limits_of(chart, matrix), _text(chart)
    body = _picture if matrix.size > MOST_CELLS else _cells
    parts = [
        *body(chart, matrix, limits, layout),
        *_row_names(layout, bool(chart.rows)),
        *_column_names(layout, bool(chart.columns)),
        *_color_bar(chart, limits, layout.left, layout.bottom + 14, text),
    ]
    known = matrix[np.isfinite(matrix)]
    spoken = f"{len(matrix)} rows, {matrix.shape[1]} columns, {text(known.min())} to {text(known.max())}"
    return svg(layout.bottom + 32, f"{chart.title}. {spoken}.", parts, layout.width)


def _layout(chart: Heatmap, shape: tuple[int, ...]) -> Layout:
    width = float(WIDE if shape[1] > NARROW_COLUMNS and math.prod(shape) <= MOST_CELLS else WIDTH)
    rows, columns = _names(chart.rows, shape[0], LONGEST_NAME), _names(chart.columns, shape[1], LONGEST_NAME)
    corner = [f"{title} {arrow}" for title, arrow in ((chart.column_title, "→"), (chart.row_title, "↓")) if title]
    left = 14 + LETTER * max(map(len, (*corner, *rows)))
    longest, room = LETTER * max(map(len, columns)), width - left - 8
    is_slanted = bool(chart.columns) and longest > _cell_size(shape, room)[0] - 4
    cells = _cell_size(shape, room - (COSINE * longest - 12 if is_slanted else 0))
    top = max(14 + SINE * longest if is_slanted else 16.0, 4 + 14.0 * len(corner))
    return Layout(rows, columns, corner, is_slanted, width, left, top, *cells)


def _names(given: Sequence[str], count: int, longest: int) -> list[str]:
    """Numbers from 1 where there are no names."""
    return [shortened(name, longest) for name in given] or [str(number) for number in range(1, count + 1)]


def _cell_size(shape: Sequence[int], room: float) -> tuple[float, float]:
    rows, columns = shape
    if rows * columns <= MOST_CELLS:
        return min(WIDEST_CELL, room / columns), CELL_HEIGHT
    side = min(room / columns, LARGEST_SIDE / rows)  # square, unless one side would be too short to see
    return max(side, min(room, 40) / columns), max(side, 40 / rows)


def limits_of(chart: Heatmap, *matrices: np.ndarray) -> tuple[float, float]:
    """The values of the first and last color, for one or several matrices alike."""
    if chart.limits is not None:
        return chart.limits
    known = np.concatenate([matrix[np.isfinite(matrix)] for matrix in matrices])
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)
    if chart.scale == "diverging":
        most = max(abs(low - chart.center), abs(high - chart.center)) or 1.0
        return chart.center - most, chart.center + most
    if high > low:
        return low, high
    return (0.0, 1.0) if chart.in_percent and 0 <= low <= 1 else (low - 0.5, low + 0.5)


def _shown(count: int, gap: float, is_named: bool) -> range:
    """Which names have room at a gap of so many cells; of numbers the round ones."""
    step = next(step for step in (size * 10**power for power in range(9) for size in (1, 2, 5)) if step >= gap - 1e-9)
    return range(0 if is_named else step - 1, count, step)


def _row_names(layout: Layout, is_named: bool) -> list[Markup]:
    """With the titles of columns and rows in the corner above them."""
    at = layout.left - 8
    corner = [
        drawn_text("tick title", at, layout.top - 6 - 14 * line, text, "end")
        for line, text in enumerate(reversed(layout.corner))
    ]
    return corner + [
        drawn_text("tick", at, layout.top + layout.cell_height * (number + 0.5) + 4, layout.rows[number], "end")
        for number in _shown(len(layout.rows), 13 / layout.cell_height, is_named)
    ]


def _column_names(layout: Layout, is_named: bool) -> list[Markup]:
    parts = []
    needed = 17 if layout.is_slanted else LETTER * max(map(len, layout.columns)) + 4
    for number in _shown(len(layout.columns), needed / layout.cell_width, is_named):
        x, y, name = layout.left + layout.cell_width * (number + 0.5), layout.top - 6, layout.columns[number]
        if layout.is_slanted:
            place = f"translate({x:.1f} {y:.1f}) rotate(-40)"
            parts.append(Markup('<text class="tick" transform="{}">{}</text>').format(place, name))
        else:
            parts.append(drawn_text("tick", x, y, name, "middle"))
    return parts


def _cells(chart: Heatmap, matrix: np.ndarray, limits: tuple[float, float], layout: Layout) -> list[Markup]:
    """A rectangle each, with its number where it fits."""
    width, height = layout.cell_width, layout.cell_height
    table, indices, text = color_table(chart.scale), color_indices(matrix, limits), _text(chart)
    rows, columns = chart.rows or layout.rows, chart.columns or layout.columns
    parts = []
    for (row, column), value in np.ndenumerate(matrix):
        x, y = layout.left + width * column, layout.top + height * row
        is_known = bool(np.isfinite(value))
        color = table[indices[row, column]]
        said = f"{rows[row]}, {columns[column]}: {text(value) if is_known else 'none'}"
        filled = Markup('fill="{}"').format(hex_color(color)) if is_known else Markup('class="empty"')
        sides = (f"{one:.1f}" for one in (x, y, width - 1, height - 1))
        number = drawn_text(
            f"cell{'' if width >= FINE else ' small'}{f' {ink_on(color)}' if is_known else ''}",
            x + width / 2,
            y + height / 2 + 4,
            _number(chart, value, width >= FINE) if is_known else "-",
            "middle",
        )
        parts.append(
            Markup('<g><title>{}</title><rect x="{}" y="{}" width="{}" height="{}" {}/>{}</g>').format(
                said, *sides, filled, number if width >= NUMBERED else ""
            )
        )
    return parts


def _picture(chart: Heatmap, matrix: np.ndarray, limits: tuple[float, float], layout: Layout) -> list[Markup]:
    """All cells as one picture; gray where they are empty."""
    height, width = (max(1, min(LARGEST_SIDE, side)) for side in matrix.shape)
    shown = matrix
    if (height, width) != matrix.shape:
        whole = Image.fromarray(np.nan_to_num(matrix, nan=limits[0]).astype(np.float32))
        shown = np.asarray(whole.resize((width, height), Image.Resampling.BOX))
    colors = np.where(np.isfinite(shown)[..., None], color_table(chart.scale)[color_indices(shown, limits)], 128)
    buffer = io.BytesIO()
    Image.fromarray(colors.astype(np.uint8)).save(buffer, format="png", optimize=True)
    address = f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"
    sides = (layout.left, layout.top, layout.cell_width * matrix.shape[1], layout.cell_height * matrix.shape[0])
    return [
        Markup('<image x="{}" y="{}" width="{}" height="{}" preserveAspectRatio="none" href="{}"/>').format(
            *(f"{side:.1f}" for side in sides), address
        )
    ]


def _color_bar(chart: Heatmap, limits: tuple[float, float], left: float, top: float, text: Text) -> list[Markup]:
    table = color_table(chart.scale)
    low, high = (text(limit) for limit in limits)
    begin = left + LETTER * len(low) + 6
    width = BAR / BAR_PARTS
    parts = [drawn_text("tick", left, top + 8, low)]
    for number in range(BAR_PARTS):
        color = table[min(COLORS - 1, round((number + 0.5) * COLORS / BAR_PARTS))]
        parts.append(
            Markup('<rect x="{}" y="{}" width="{}" height="8" fill="{}"/>').format(
                f"{begin + width * number:.1f}", f"{top:.1f}", f"{width + 0.3:.1f}", hex_color(color)
            )
        )
    return [*parts, drawn_text("tick", begin + BAR + 6, top + 8, high)]


def _text(chart: Heatmap) -> Text:
    return percent_text if chart.in_percent else "{:.3g}".format


def _number(chart: Heatmap, value: float, fine: bool) -> str:
    """What a cell has room for: percents without the sign."""
    if chart.in_percent:
        return f"{100 * value:.1f}" if fine else f"{100 * value:.0f}"
    return f"{value:.3g}" if fine else f"{value:.1g}"

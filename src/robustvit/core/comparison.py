"""Measures of several results next to each other: as a table, and as lines or dots with their intervals."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from robustvit.core.finding import Chart, Line, Table, percent
from robustvit.core.result import Measure


@dataclass(frozen=True)
class Row:
    name: str
    cells: Mapping[str, Measure]
    """By column."""
    at: float | None = None
    """Its place on an axis of numbers."""


def interval_text(measure: Measure) -> str:
    if measure.interval is None:
        return ""
    low, high = measure.interval
    return f"{percent(low)} to {percent(high)}"


def compared(title: str, header: str, rows: Sequence[Row], x_title: str = "") -> tuple[Table, Chart]:
    """A table; and lines over an axis of numbers, or dots in named rows."""
    names = list(dict.fromkeys(name for row in rows for name in row.cells))
    texts = tuple(
        (row.name, *(percent(row.cells[name].value) if name in row.cells else "" for name in names)) for row in rows
    )
    lines = []
    for name in names:
        known = [(number, row, row.cells[name]) for number, row in enumerate(rows) if name in row.cells]
        xs = tuple(float(number if row.at is None else row.at) for number, row, _ in known)
        ys = tuple(measure.value for _, _, measure in known)
        lines.append(Line(name, xs, ys, tuple(one.interval or (one.value, one.value) for _, _, one in known)))
    table = Table(title, (header, *names), texts)
    if x_title:
        return table, Chart(title, x_title, tuple(lines), in_percent=True)
    return table, Chart(title, "accuracy", tuple(lines), True, "dots", tuple(row.name for row in rows))

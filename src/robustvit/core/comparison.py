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


def line_of(name: str, points: Sequence[tuple[float, Measure]]) -> Line:
    """Values in the order given, each with its interval."""
    intervals = tuple(measure.interval or (measure.value, measure.value) for _, measure in points)
    return Line(name, tuple(x for x, _ in points), tuple(measure.value for _, measure in points), intervals)


def compared(title: str, header: str, rows: Sequence[Row], x_title: str = "") -> tuple[Table, Chart]:
    """A table; and lines over an axis of numbers, or dots in named rows."""
    names = list(dict.fromkeys(name for row in rows for name in row.cells))
    texts = tuple(
        (row.name, *(percent(row.cells[name].value) if name in row.cells else "" for name in names)) for row in rows
    )
    lines = tuple(
        line_of(
            name,
            [
                (float(number if row.at is None else row.at), row.cells[name])
                for number, row in enumerate(rows)
                if name in row.cells
            ],
        )
        for name in names
    )
    table = Table(title, (header, *names), texts)
    if x_title:
        return table, Chart(title, x_title, lines, in_percent=True)
    return table, Chart(title, "accuracy", lines, True, "dots", tuple(row.name for row in rows))

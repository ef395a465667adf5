"""The outcome of an analysis as plain values: tables, charts and pictures with a caption; and its files."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import TypeAdapter

from robustvit.core.binary import read_arrays
from robustvit.core.checksum import with_checksum, without_checksum
from robustvit.core.errors import UserError
from robustvit.core.files import is_file, write_arrays, write_json
from robustvit.core.readers import conforming, read_json
from robustvit.core.result import Measure

FILE, ARRAYS = "finding.json", "arrays.npz"


@dataclass(frozen=True)
class Table:
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    """The first cell of each is its name; fractions are written in percent."""


@dataclass(frozen=True)
class Line:
    """Values at places along an axis; None leaves a gap."""

    name: str
    xs: tuple[float, ...]
    ys: tuple[float | None, ...]
    intervals: tuple[tuple[float, float], ...] = ()
    """Around each value, where chance has a part in it."""


@dataclass(frozen=True)
class Chart:
    title: str
    x_title: str
    lines: tuple[Line, ...]
    in_percent: bool = False
    kind: Literal["lines", "histogram", "dots"] = "lines"
    rows: tuple[str, ...] = ()
    """Of dots, which are in rows of these names instead of along an axis of numbers; xs are the rows' numbers."""
    marks: tuple[tuple[float, str], ...] = ()
    """Places along the axis that mean something, with a word."""


@dataclass(frozen=True)
class Pictures:
    """Rows of pictures, stored as (rows, columns, 3, H, W) in [0, 1] among the arrays."""

    title: str
    array: str
    columns: tuple[str, ...]
    rows: tuple[str, ...]


@dataclass(frozen=True)
class Finding:
    """The result of an analysis or sweep: tables, charts and pictures with a caption."""

    title: str
    caption: str
    tables: tuple[Table, ...] = ()
    charts: tuple[Chart, ...] = ()
    pictures: tuple[Pictures, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)
    """What it was made of and how, the command among them."""
    arrays: dict[str, Any] = field(default_factory=dict)
    """What is too large for text."""


def percent(fraction: float) -> str:
    return f"{100 * fraction:.1f} %"


def write_finding(folder: Path, finding: Finding) -> None:
    if finding.arrays:
        write_arrays(folder / ARRAYS, finding.arrays)
    plain = asdict(finding)
    del plain["arrays"]
    # what isn't a number becomes null, which leaves a gap
    known = json.loads(json.dumps(plain), parse_constant=lambda _: None)
    arrays = {name: np.asarray(array) for name, array in finding.arrays.items()}
    write_json(folder / FILE, with_checksum(known, arrays))


def read_finding(folder: Path) -> Finding:
    path, remedy = folder / FILE, "remove its folder to have it made anew"
    arrays = read_arrays(folder / ARRAYS, None, remedy) if is_file(folder / ARRAYS) else {}
    content = read_json(path, TypeAdapter(dict[str, Any]), "whole finding", remedy)
    finding = conforming({**content, "arrays": arrays}, _ADAPTER, path, "whole finding", remedy)
    problem = next((problem for problem in _problems(finding)), None)
    if problem is not None:
        raise UserError(f"{path}: not a whole finding ({problem}); {remedy}")
    without_checksum(content, path, remedy, arrays)
    return finding


def _problems(finding: Finding) -> Iterator[str]:
    """What no type says: parts that must fit each other."""
    for table in finding.tables:
        if any(len(row) != len(table.columns) for row in table.rows):
            yield f"table '{table.title}': rows and columns differ in length"
    for chart in finding.charts:
        for line in chart.lines:
            if len(line.xs) != len(line.ys) or (line.intervals and len(line.intervals) != len(line.xs)):
                yield f"chart '{chart.title}': a line has another number of values than of places"
            if chart.kind == "dots" and not all(0 <= x < len(chart.rows) for x in line.xs):
                yield f"chart '{chart.title}': a dot lies outside of its rows"
    for pictures in finding.pictures:
        shape = getattr(finding.arrays.get(pictures.array), "shape", ())
        if len(shape) != 5 or shape[:3] != (len(pictures.rows), len(pictures.columns), 3) or not all(shape):
            yield f"pictures '{pictures.title}': {ARRAYS} does not hold them"


_ADAPTER: TypeAdapter[Finding] = TypeAdapter(Finding)


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

"""The outcome of an analysis as plain values: figures with a caption; and its files."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from robustvit.core.binary import read_arrays
from robustvit.core.checksum import with_checksum, without_checksum
from robustvit.core.errors import UserError
from robustvit.core.figures import Chart, Figure, Heatmap, Line, Pictures, Table, percent, without_nan
from robustvit.core.files import is_file, write_arrays, write_json
from robustvit.core.notebook import InNotebooks, Sheet
from robustvit.core.readers import conforming, read_json
from robustvit.core.result import Measure, Result
from robustvit.core.result_files import FILE as RESULT, read_result
from robustvit.core.run import RunFolder

FILE, ARRAYS, FIGURES = "finding.json", "arrays.npz", "figures"
"""In its folder; the last one holds its figures as files."""


@dataclass(frozen=True, repr=False)
class Finding(InNotebooks):
    """The result of an analysis or sweep: tables, charts and pictures with a caption."""

    title: str
    caption: str
    tables: tuple[Table, ...] = ()
    charts: tuple[Figure, ...] = ()
    """Charts and heat maps."""
    pictures: tuple[Pictures, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)
    """What it was made of and how, the command among them."""
    arrays: dict[str, Any] = field(default_factory=dict)
    """What is too large for text."""
    folder: str | None = field(default=None, compare=False)
    """Where it is stored, and below it the results that it was made of."""

    def __repr__(self) -> str:
        return f"Finding({self.title}: {self.caption})"

    def sheet(self) -> Sheet:
        has_figures = bool(self.charts or self.pictures)
        tables, folded = ((), self.tables) if has_figures else (self.tables, ())
        return Sheet(self.title, self.caption, tables, self.charts, self.pictures, folded=folded, arrays=self.arrays)


def write_finding(folder: Path, finding: Finding) -> None:
    if finding.arrays:
        write_arrays(folder / ARRAYS, finding.arrays)
    plain = {key: value for key, value in asdict(finding).items() if key not in ("arrays", "folder")}
    arrays = {name: np.asarray(array) for name, array in finding.arrays.items()}
    write_json(folder / FILE, with_checksum(without_nan(plain), arrays))


def read_finding(folder: Path) -> Finding:
    path, remedy = folder / FILE, "remove its folder to have it made anew"
    arrays = read_arrays(folder / ARRAYS, None, remedy) if is_file(folder / ARRAYS) else {}
    content = read_json(path, TypeAdapter(dict[str, Any]), "whole finding", remedy)
    finding = conforming({**content, "arrays": arrays}, _ADAPTER, path, "whole finding", remedy)
    problem = next((problem for problem in _problems(finding)), None)
    if problem is not None:
        raise UserError(f"{path}: not a whole finding ({problem}); {remedy}")
    without_checksum(content, path, remedy, arrays)
    return replace(finding, folder=str(folder))


def results_of(finding: Finding) -> list[Result]:
    """Of the evaluations that an analysis made in its folder, image by image."""
    root = None if finding.folder is None else RunFolder(Path(finding.folder)).evaluations
    return [] if root is None else [read_result(path.parent) for path in sorted(root.glob(f"*/{RESULT}"))]


def _problems(finding: Finding) -> Iterator[str]:
    """Charts and pictures whose arrays are missing or of another shape."""
    for chart in finding.charts:
        if isinstance(chart, Heatmap) and chart.array:
            matrix = np.asarray(finding.arrays.get(chart.array))
            if not chart.fits(matrix.shape) or matrix.dtype.kind != "f":
                yield f"heat map '{chart.title}': {ARRAYS} does not hold its matrix of numbers"
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

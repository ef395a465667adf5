"""The outcome of an analysis as plain values: tables, charts and pictures with a caption; and its files."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter

from robustvit.core.files import is_file, write_json
from robustvit.core.records import read_arrays, read_record, write_arrays

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
    write_json(folder / FILE, json.loads(json.dumps(plain), parse_constant=lambda _: None))


def read_finding(folder: Path) -> Finding:
    arrays = read_arrays(folder / ARRAYS) if is_file(folder / ARRAYS) else {}
    remedy = "remove its folder to have it made anew"
    finding: Finding = read_record(folder / FILE, "finding", TypeAdapter(Finding), {"arrays": arrays}, remedy)
    return finding

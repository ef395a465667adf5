"""Findings of analyses and sweeps, as the page shows them."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from markupsafe import Markup

from robustvit.core.errors import UserError
from robustvit.core.finding import FILE, Chart, Finding, Pictures, Table, read_finding
from robustvit.core.run import RunFolder
from robustvit.reporting.charts import Series, line_chart, tone
from robustvit.reporting.dots import dot_chart
from robustvit.reporting.pictures import PIXELATED_BELOW, data_uri

MOST_PICTURES = 12
"""Rows of pictures of one finding."""
_STYLES = {"clean": "clean", "robust": "robust"}
"""What these words have in the other parts of the page."""


@dataclass(frozen=True)
class Shown:
    title: str
    caption: str
    tables: tuple[Table, ...]
    charts: tuple[tuple[str, Markup], ...]
    galleries: tuple[tuple[str, tuple[str, ...], list[list[str]], bool], ...]
    """Title, columns, rows of pictures, and whether they are small."""
    command: str


def findings(run: Path) -> Iterator[Shown]:
    """In the order of their folders' names."""
    for path in sorted(RunFolder(run).analyses.glob(f"*/{FILE}")):
        found = read_finding(path.parent)
        try:
            yield Shown(
                title=found.title,
                caption=found.caption,
                tables=found.tables,
                charts=tuple((chart.title, drawn(chart)) for chart in found.charts),
                galleries=tuple(_gallery(one, found) for one in found.pictures),
                command=str(found.facts.get("command", "")),
            )
        except (KeyError, ValueError, IndexError) as error:
            raise UserError(f"{path}: not a whole finding ({error}); remove its folder to have it made anew") from None


def drawn(chart: Chart) -> Markup:
    text = (lambda y: f"{100 * y:.3g} %") if chart.in_percent else (lambda y: f"{y:.3g}")
    series = [
        Series(
            line.name,
            _STYLES.get(line.name, tone(place)),
            list(zip(line.xs, line.ys, strict=True)),
            [(x, *interval) for x, interval in zip(line.xs, line.intervals, strict=True)] if line.intervals else (),
            has_dots=chart.kind == "lines",
        )
        for place, line in enumerate(chart.lines)
    ]
    if chart.kind == "dots":
        return dot_chart(chart.title, chart.rows, series, x_title=chart.x_title, x_text=text)
    is_accuracy = chart.in_percent and chart.kind == "lines"
    return line_chart(
        chart.title, series, x_title=chart.x_title, y_text=text, y_range=(0, 1) if is_accuracy else None,
        marks=chart.marks, has_values=chart.kind == "lines",
    )  # fmt: skip


def _gallery(pictures: Pictures, found: Finding) -> tuple[str, tuple[str, ...], list[list[str]], bool]:
    images = found.arrays[pictures.array][:MOST_PICTURES]  # (rows, columns, 3, H, W)
    is_small = min(images.shape[-2:]) < PIXELATED_BELOW
    rows = [[data_uri(np.nan_to_num(image), is_small) for image in row] for row in images]
    return pictures.title, pictures.columns, rows, is_small

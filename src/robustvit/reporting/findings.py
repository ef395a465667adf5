"""Findings of analyses and sweeps, and results of other evaluators than attacks, as the page shows them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from robustvit.core.errors import UserError
from robustvit.core.figures import Chart, Pictures, Table
from robustvit.core.finding import FILE, Finding, Row, compared, read_finding
from robustvit.core.result import ConditionResult, Measure, Result
from robustvit.core.run import RunFolder
from robustvit.reporting.charts import Series, dot_chart, line_chart, tone
from robustvit.reporting.pictures import PIXELATED_BELOW, data_uri
from robustvit.reporting.read import Run

MOST_PICTURES = 12
"""Rows of pictures of one finding."""
MOST_CONDITIONS = 40
"""Of one chart."""
_STYLES = {"clean": "clean", "robust": "robust"}
"""What these words have in the other parts of the page."""


@dataclass(frozen=True)
class Shown:
    finding: Finding
    charts: list[tuple[str, Markup]]
    galleries: list[tuple[Pictures, list[list[str]], bool]]
    """Rows of images, and whether they are small."""


def findings(run: Path) -> Iterator[Shown]:
    """In the order of their folders' names."""
    for path in sorted(RunFolder(run).analyses.glob(f"*/{FILE}")):
        finding = read_finding(path.parent)
        try:
            yield _shown(finding)
        except (KeyError, ValueError, IndexError) as error:
            raise UserError(f"{path}: not a whole finding ({error}); remove its folder to have it made anew") from None


def other_results(runs: Sequence[Run]) -> list[tuple[str, Shown]]:
    """Results that the table of attacks has no columns for, shown as findings are."""
    results = [(run.name, one.result) for run in runs for one in run.evaluations if not one.fits_table]
    return [(name, _shown(_as_finding(result))) for name, result in results]


def _as_finding(result: Result) -> Finding:
    """Its measures and conditions."""
    provenance = result.provenance
    at = "" if result.threat is None else f", {result.threat}"
    caption = f"{provenance.images_rule} images of {provenance.data}{at}. Intervals are 95 % over the choice of images."
    measures = tuple((one.name, f"{one.value:.4g}", _interval(one), one.description) for one in result.measures)
    tables = [Table("Measures", ("measure", "value", "95 % interval", ""), measures)]
    table, chart = compared("Conditions", "condition", [_row(one) for one in result.conditions])
    tables += [table] if len(result.conditions) > 1 else []
    charts = (chart,) if 1 < len(result.conditions) <= MOST_CONDITIONS else ()
    return Finding(result.title, caption, tuple(tables), charts, facts={"command": provenance.command})


def _row(condition: ConditionResult) -> Row:
    if condition.accuracy is None:
        return Row(condition.name, {})
    return Row(condition.name, {"accuracy": Measure("accuracy", condition.accuracy, condition.interval)})


def _interval(measure: Measure) -> str:
    return "" if measure.interval is None else f"{measure.interval[0]:.4g} to {measure.interval[1]:.4g}"


def _shown(finding: Finding) -> Shown:
    drawable = [one for one in finding.charts if isinstance(one, Chart) and one.kind != "scatter"]
    charts = [(chart.title, _drawn(chart)) for chart in drawable]
    return Shown(finding, charts, [_gallery(pictures, finding.arrays) for pictures in finding.pictures])


def _drawn(chart: Chart) -> Markup:
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


def _gallery(pictures: Pictures, arrays: Mapping[str, Any]) -> tuple[Pictures, list[list[str]], bool]:
    images = arrays[pictures.array][:MOST_PICTURES]  # (rows, columns, 3, H, W)
    is_small = min(images.shape[-2:]) < PIXELATED_BELOW
    rows = [[data_uri(np.nan_to_num(image), is_small) for image in row] for row in images]
    return pictures, rows, is_small

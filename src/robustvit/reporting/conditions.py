"""Results without a threat: measures and conditions, shown as findings are."""

from collections.abc import Sequence

from markupsafe import Markup

from robustvit.core.comparison import Row, compared
from robustvit.core.finding import Table
from robustvit.core.result import Measure, Result
from robustvit.reporting.findings import Shown, drawn
from robustvit.reporting.read import Run

MOST_DRAWN = 40
"""Conditions of one chart."""


def condition_results(runs: Sequence[Run]) -> list[tuple[str, Shown]]:
    return [
        (run.name, _shown(evaluation.result))
        for run in runs
        for evaluation in run.evaluations
        if evaluation.result.threat is None
    ]


def _shown(result: Result) -> Shown:
    provenance = result.provenance
    charts: list[tuple[str, Markup]] = []
    tables = [_measures(result)]
    if len(result.conditions) > 1:
        rows = [
            Row(one.name, {"accuracy": Measure("accuracy", one.accuracy, one.interval)}) for one in result.conditions
        ]
        table, chart = compared("Conditions", "condition", rows)
        tables.append(table)
        charts += [(chart.title, drawn(chart))] if len(rows) <= MOST_DRAWN else []
    return Shown(
        title=result.title,
        caption=f"{provenance.images_rule} images of {provenance.data}. Intervals are 95 % over the choice of images.",
        tables=tuple(tables),
        charts=tuple(charts),
        galleries=(),
        command=provenance.command,
    )


def _measures(result: Result) -> Table:
    rows = tuple((one.name, f"{one.value:.4g}", _interval(one), one.description) for one in result.measures)
    return Table("Measures", ("measure", "value", "95 % interval", ""), rows)


def _interval(measure: Measure) -> str:
    return "" if measure.interval is None else f"{measure.interval[0]:.4g} to {measure.interval[1]:.4g}"

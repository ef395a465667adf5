"""Results that the table of attacks has no columns for: measures, conditions and figures, runs side by side."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from markupsafe import Markup

from robustvit.core.errors import shortened
from robustvit.core.figures import Chart, Heatmap
from robustvit.core.finding import Row, compared
from robustvit.core.result import ConditionResult, Measure, Result
from robustvit.core.summary import measure_text
from robustvit.reporting.axes import TONES
from robustvit.reporting.drawing import drawn, matrix_of
from robustvit.reporting.findings import LEFT_OUT
from robustvit.reporting.heatmaps import limits_of
from robustvit.reporting.pictures import Budget
from robustvit.reporting.read import Evaluation, Run
from robustvit.reporting.tables import as_yaml

MOST_DOTS = 120
"""Of the chart of conditions; more are in the table alone."""
LONGEST_SETTINGS = 400


@dataclass(frozen=True)
class Column:
    """A run of a block."""

    name: str
    anchor: str
    """Of its settings, within the page."""
    result: Result


@dataclass(frozen=True)
class Cell:
    value: str
    interval: str
    num_images: str = ""


MeasureRow = tuple[str, str, list[Cell | None]]
"""Name, description, and a cell for each column."""


@dataclass(frozen=True)
class Block:
    """Results of one evaluator with the same settings on the same images."""

    title: str
    data: str
    settings: str
    notes: tuple[str, ...]
    columns: tuple[Column, ...]
    measures: list[MeasureRow]
    details: list[MeasureRow]
    """Measures of a part of the conditions."""
    conditions: list[tuple[str, list[Cell | None]]]
    figures: list[tuple[str, Markup, str]]
    """Title, drawing and note."""

    @property
    def has_conditions(self) -> bool:
        return any(column.result.conditions for column in self.columns)


def blocks(runs: Sequence[Run], names: dict[tuple[str, str, str], str], budget: Budget) -> list[Block]:
    """In the order of the runs; `names` are those of the data."""
    found: dict[Any, list[Column]] = {}
    for number, run in enumerate(runs, start=1):
        for place, one in enumerate(run.evaluations, start=1):
            if not one.fits_table:
                anchor = f"evaluation-{number}-{place}"
                found.setdefault(question(one), []).append(Column(evaluation_name(run, one), anchor, one.result))
    data = {question(one): names[one.data] for run in runs for one in run.evaluations}
    return [_block(columns, data[question], budget) for question, columns in found.items()]


def question(one: Evaluation) -> tuple[Any, ...]:
    """Numbers may be compared only where all of this is the same."""
    result = one.result
    return result.kind, result.suite, str(result.threat), one.data, as_yaml(result.provenance.settings)


def evaluation_name(run: Run, one: Evaluation) -> str:
    """Of the run, and of the weights where several of them were evaluated."""
    return f"{run.name}, {run.weights_name(one)}" if run.has_rivals else run.name


def _block(columns: list[Column], data: str, budget: Budget) -> Block:
    first = columns[0].result
    settings = {key: value for key, value in first.provenance.settings.items() if key != "name"}
    return Block(
        title=first.suite if first.threat is None else f"{first.suite}, {first.threat}",
        data=f"{data}, {first.provenance.images_rule}",
        settings=shortened(as_yaml(settings, flow=True).strip("{}"), LONGEST_SETTINGS) if settings else "",
        notes=tuple(dict.fromkeys(f"{note[:1].upper()}{note[1:]}" for one in columns for note in one.result.notes)),
        columns=tuple(columns),
        measures=_measures(columns, details=False),
        details=_measures(columns, details=True),
        conditions=_conditions(columns),
        figures=_figures(columns, budget),
    )


def _measures(columns: Sequence[Column], details: bool) -> list[MeasureRow]:
    every = {one.name: one for column in columns for one in column.result.measures if one.is_detail == details}
    rows = []
    for name, one in every.items():
        cells = [_measure_cell(column.result.measure(name)) if column.result.has(name) else None for column in columns]
        rows.append((name.replace("_", " "), one.description, cells))
    return rows


def _measure_cell(measure: Measure) -> Cell:
    value, _, interval = measure_text(measure).partition(" (")
    return Cell(value, interval.removesuffix(")"))


def images_text(result: Result) -> str:
    """`1,000`, or of how many images each condition is where they differ."""
    counts = [one.num_images for one in result.conditions] or [result.num_images]
    low, high = min(counts), max(counts)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _conditions(columns: Sequence[Column]) -> list[tuple[str, list[Cell | None]]]:
    """None where there is a single one, which the measures tell."""
    known = [{one.name: one for one in column.result.conditions} for column in columns]
    names = list(dict.fromkeys(name for one in known for name in one))
    if len(names) < 2:
        return []
    return [(name, [_condition_cell(one[name]) if name in one else None for one in known]) for name in names]


def _condition_cell(one: ConditionResult) -> Cell:
    if one.accuracy is None:
        return Cell("no image left", "")
    measure = _measure_cell(Measure("accuracy", one.accuracy, one.interval, kind="accuracy"))
    return replace(measure, num_images=f"{one.num_images:,}")


def _figures(columns: Sequence[Column], budget: Budget) -> list[tuple[str, Markup, str]]:
    """Of all runs side by side; of conditions without figures a chart."""
    shown = []
    places = range(max(len(column.result.figures) for column in columns))
    for place in places:
        same = [(column, column.result.figures[place]) for column in columns if place < len(column.result.figures)]
        for column, figure in zip((column for column, _ in same), _alike([one for _, one in same]), strict=True):
            title = figure.title if len(columns) == 1 else f"{figure.title}, {column.name}"
            svg = drawn(figure)
            if isinstance(figure, Heatmap) and not budget.spend(len(svg)):
                svg = LEFT_OUT.format("result.json")
            shown.append((title, svg, figure.note))
    chart = None if shown else _conditions_chart(columns)
    return [(chart.title, drawn(chart), "")] if chart is not None else shown


def _alike(figures: Sequence[Chart | Heatmap]) -> list[Chart | Heatmap]:
    """Heat maps of one title in the same colors, so that they can be compared."""
    maps = [one for one in figures if isinstance(one, Heatmap)]
    if len(maps) < len(figures) or len({one.title for one in maps}) > 1 or any(one.limits for one in maps):
        return list(figures)
    limits = limits_of(maps[0], *(matrix_of(one, {}) for one in maps))
    return [replace(one, limits=limits) for one in maps]


def _conditions_chart(columns: Sequence[Column]) -> Chart | None:
    results: dict[str, dict[str, Measure]] = {}
    for column in columns:
        series = column.name if len(columns) > 1 else "accuracy"
        for one in column.result.conditions:
            if one.accuracy is not None:
                measure = Measure("accuracy", one.accuracy, one.interval, kind="accuracy")
                results.setdefault(one.name, {})[series] = measure
    rows = [Row(name, cells) for name, cells in results.items()]
    if len(rows) < 2 or len(rows) * len(columns) > MOST_DOTS or len(columns) > TONES:
        return None
    return compared("Accuracy by condition", "condition", rows)[1]

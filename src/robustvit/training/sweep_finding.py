"""The outcome of a sweep: one table and one plot, in the form that the report shows."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from robustvit.core.comparison import Row, compared, interval_text
from robustvit.core.component import to_dict
from robustvit.core.errors import UserError, first_line
from robustvit.core.finding import Chart, Finding, Table, percent
from robustvit.core.numbers import parse_number
from robustvit.core.result import CLEAN_ACCURACY, Measure, Result
from robustvit.core.run import command
from robustvit.training.sweep_grid import Point, Sweep, yaml_text

Outcome = tuple[Result, ...] | UserError
"""A result for each suite of the sweep, or why there is none."""
MOST_LINES = 6
"""That a chart can hold apart."""
Done = Sequence[tuple[Point, tuple[Result, ...]]]


def sweep_finding(sweep: Sweep, outcomes: Sequence[tuple[Point, Outcome]]) -> Finding:
    done = [(point, results) for point, results in outcomes if isinstance(results, tuple)]
    names = list(dict.fromkeys(name for point, _ in outcomes for name in point.settings))
    columns = list(dict.fromkeys(name for _, results in done for name in _cells(results))) or ["outcome"]
    rows = []
    for point, outcome in outcomes:
        set_to = [yaml_text(point.settings[name]) if name in point.settings else "" for name in names]
        cells = _cells(outcome) if isinstance(outcome, tuple) else {columns[0]: f"failed: {first_line(outcome)}"}
        rows.append((*set_to, *(cells.get(name, "") for name in columns)))
    images = f", {done[0][1][0].num_images} images of {done[0][1][0].provenance.data}" if done else ""
    table = Table(sweep.info.about or sweep.name, (*names, *columns), tuple(rows))
    return Finding(
        f"Sweep of {sweep.recipe}",
        f"{' and '.join(sweep.suites)}{images}. Bands and whiskers are 95 % intervals over the choice of images.",
        tables=(table,),
        charts=_charts(done, names),
        facts={"sweep": to_dict(sweep), "command": command()},
    )


def _cells(results: Sequence[Result]) -> dict[str, str]:
    """A column for each measure and its interval; where something was searched for, also what its control leaves."""
    clean = [result.clean for result in results if result.has(CLEAN_ACCURACY)]
    cells = {"clean": percent(clean[0].value)} if clean else {}
    for result in results:
        of = f" ({result.title})" if len(results) > 1 else ""
        measure = result.headline
        if result.stages:
            cells |= {f"robust{of}": percent(measure.value), f"95 %{of}": interval_text(measure)}
        elif measure.name != CLEAN_ACCURACY:
            cells |= {f"{measure.name}{of}": f"{measure.value:.4g}"}
        if result.control is not None:
            cells[f"{result.control.name}{of}"] = percent(result.control.measures[-1].value)
    return cells


def _charts(done: Done, names: Sequence[str]) -> tuple[Chart, ...]:
    """Accuracy along the setting with the most numbers; in rows where there are words, or what would crowd."""
    if len(done) < 2:
        return ()
    numbers = {name: [_number(point.settings.get(name)) for point, _ in done] for name in names}
    axes = [name for name, values in numbers.items() if None not in values and len(set(values)) > 1]
    axis = max(axes, key=lambda name: len(set(numbers[name])), default=None)
    if axis is not None and not _is_crowded([number for number in numbers[axis] if number is not None]):
        groups = [", ".join(_changing(point, done, without=axis)) for point, _ in done]
        with_clean = len(set(groups)) == 1
        rows = [
            Row(group, _measures(results, group, with_clean), x)
            for group, x, (_, results) in zip(groups, numbers[axis], done, strict=True)
        ]
        rows.sort(key=lambda row: (groups.index(row.name), row.at))
        chart = compared(f"Accuracy against {axis}", axis, rows, axis)[1]
        if len(chart.lines) <= MOST_LINES:
            return (chart,)
    rows = [Row(", ".join(_changing(point, done)) or point.title, _measures(results)) for point, results in done]
    return (compared("Accuracy", "", rows)[1],)


def _is_crowded(numbers: Sequence[float]) -> bool:
    """Whether two of them would overlap on a linear axis."""
    places = sorted(set(numbers))
    return min(after - before for before, after in pairwise(places)) < 0.04 * (places[-1] - places[0])


def _changing(point: Point, done: Done, without: str = "") -> list[str]:
    """What a point sets that others set otherwise, or not at all; by the last part of its name where that is enough."""
    names = list(dict.fromkeys(name for other, _ in done for name in other.settings))
    ends = [name.rpartition(".")[2] for name in names]
    parts = []
    for name, value in point.settings.items():
        others = {yaml_text(other.settings[name]) if name in other.settings else "" for other, _ in done}
        if len(others) > 1 and name != without:
            end = name.rpartition(".")[2]
            parts.append(f"{end if ends.count(end) == 1 else name}={yaml_text(value)}")
    return parts


def _measures(results: Sequence[Result], group: str = "", with_clean: bool = True) -> dict[str, Measure]:
    """By the name of their line; clean accuracy is also what else was measured without an attack."""
    attacked = [result for result in results if result.stages]
    measures = {}
    if with_clean or not attacked:
        clean = [result.clean for result in results if result.has(CLEAN_ACCURACY)]
        measures["clean"] = clean[0] if clean else results[0].headline
    for result in attacked:
        suite = result.title if len(attacked) > 1 else ""
        measures[suite or ("" if group else "robust")] = result.headline
        if result.control is not None:
            measures[_joined(suite, result.control.name)] = result.control.measures[-1]
    return {_joined(group, name): measure for name, measure in measures.items()}


def _joined(*words: str) -> str:
    return ", ".join(filter(None, words))


def _number(value: Any) -> float | None:
    try:
        number = float(parse_number(value))
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) and not isinstance(value, bool) else None

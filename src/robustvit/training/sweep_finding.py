"""The outcome of a sweep: one table and one plot, in the form that the report shows."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from robustvit.core.comparison import interval_text, line_of
from robustvit.core.component import to_dict
from robustvit.core.errors import UserError, first_line
from robustvit.core.finding import Chart, Finding, Line, Table, percent
from robustvit.core.numbers import parse_number
from robustvit.core.result import CLEAN_ACCURACY, Measure, Result
from robustvit.core.run import command
from robustvit.training.sweep_grid import Point, Sweep, yaml_text

Outcome = tuple[Result, ...] | UserError
"""A result for each suite of the sweep, or why there is none."""
CLEAN, ROBUST = "clean", "robust"
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
        along: dict[str, list[tuple[float, tuple[Result, ...]]]] = {}
        for x, (point, results) in zip(numbers[axis], done, strict=True):
            assert x is not None
            others = _changing(point, done, without=axis)
            along.setdefault(", ".join(others), []).append((x, results))
        if len(lines := _lines(along)) <= MOST_LINES:
            return (Chart(f"Accuracy against {axis}", axis, lines, in_percent=True),)
    words = tuple(", ".join(_changing(point, done)) or point.title for point, _ in done)
    lines = _lines({"": [(float(place), results) for place, (_, results) in enumerate(done)]})
    return (Chart("Accuracy", "accuracy", lines, True, "dots", words),)


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


def _lines(along: Mapping[str, list[tuple[float, tuple[Result, ...]]]]) -> tuple[Line, ...]:
    lines = []
    for name, group in along.items():
        points = [(x, _measures(results)) for x, results in sorted(group, key=lambda each: each[0])]
        first = points[0][1]
        for part in first:
            if (part == CLEAN and len(along) > 1 and len(first) > 1) or not all(part in each for _, each in points):
                continue
            words = (name, "" if name and part == ROBUST else part)
            lines.append(line_of(", ".join(filter(None, words)), [(x, each[part]) for x, each in points]))
    return tuple(lines)


def _measures(results: Sequence[Result]) -> dict[str, Measure]:
    """By the name of their line; first clean accuracy, or what else was measured without an attack."""
    plain = next((result.clean for result in results if result.has(CLEAN_ACCURACY)), results[0].headline)
    measures = {CLEAN: plain}
    attacked = [result for result in results if result.stages]
    for result in attacked:
        suite = result.title if len(attacked) > 1 else ""
        measures[suite or ROBUST] = result.headline
        if result.control is not None:
            measures[", ".join(filter(None, (suite, result.control.name)))] = result.control.measures[-1]
    return measures


def _number(value: Any) -> float | None:
    try:
        number = float(parse_number(value))
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) and not isinstance(value, bool) else None

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
MOST_LINES = 6
"""That a chart can hold apart."""
Done = Sequence[tuple[Point, tuple[Result, ...]]]


def sweep_finding(sweep: Sweep, outcomes: Sequence[tuple[Point, Outcome]]) -> Finding:
    done = [(point, results) for point, results in outcomes if isinstance(results, tuple)]
    names = list(dict.fromkeys(name for point, _ in outcomes for name in point.settings))
    columns = list(dict.fromkeys(name for _, results in done for name in _cells(results)))
    rows = []
    for point, outcome in outcomes:
        set_to = [yaml_text(point.settings[name]) if name in point.settings else "" for name in names]
        if isinstance(outcome, tuple):
            cells = _cells(outcome)
            rows.append((*set_to, *(cells.get(name, "") for name in columns)))
        else:
            rows.append((*set_to, *[f"failed: {first_line(outcome)}", *[""] * len(columns)][: max(len(columns), 1)]))
    images = f", {done[0][1][0].num_images} images of {done[0][1][0].provenance.data}" if done else ""
    table = Table(sweep.info.about or sweep.name, (*names, *(columns or ["outcome"])), tuple(rows))
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


def _attacked(results: Sequence[Result]) -> list[Result]:
    """Without an attack there is no robust accuracy to show."""
    return [result for result in results if result.stages]


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
        group.sort(key=lambda each: each[0])
        first = _attacked(group[0][1])
        if len(along) == 1 or not first:
            lines.append(line_of(_joined(name, "clean"), [(x, _plain(results)) for x, results in group]))
        for place, result in enumerate(first):
            suite = result.title if len(first) > 1 else "" if name else "robust"
            mine = [(x, _attacked(results)[place]) for x, results in group]
            lines.append(line_of(_joined(name, suite), [(x, each.headline) for x, each in mine]))
            controls = [(x, each.control.measures[-1]) for x, each in mine if each.control is not None]
            if result.control is not None and len(controls) == len(mine):
                lines.append(line_of(_joined(name, suite.replace("robust", ""), result.control.name), controls))
    return tuple(lines)


def _plain(results: Sequence[Result]) -> Measure:
    """Clean accuracy, or what else was measured without an attack."""
    return next((result.clean for result in results if result.has(CLEAN_ACCURACY)), results[0].headline)


def _joined(*words: str) -> str:
    return ", ".join(word for word in words if word)


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or value is None:
        return None
    try:
        number = float(parse_number(value))
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None

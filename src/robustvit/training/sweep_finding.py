"""The outcome of a sweep as a finding: a table of all points, and charts."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import mean
from typing import Any

from pydantic import TypeAdapter

from robustvit.core.component import to_dict
from robustvit.core.errors import UserError, first_line
from robustvit.core.figures import Chart, Interval, Line, Table, percent
from robustvit.core.files import is_file
from robustvit.core.finding import Finding, Row, compared, interval_text
from robustvit.core.numbers import parse_number, short_count
from robustvit.core.readers import read_json
from robustvit.core.result import CLEAN_ACCURACY, Measure, Result
from robustvit.core.run import command
from robustvit.core.summary import measure_text
from robustvit.training.sweep_first import first_folder, first_point
from robustvit.training.sweep_grid import Point, Sweep, yaml_text
from robustvit.training.sweep_seeds import Group, Measures, difference_tables, grouped, seed_table

Outcome = tuple[Result, ...] | UserError
"""A result for each head and suite of the sweep, or why there is none."""
MOST_LINES = 6
"""That a chart can hold apart."""
_ROBUST = "robust"
"""Measure of the only attack."""
Done = Sequence[tuple[Point, tuple[Result, ...]]]


def sweep_finding(sweep: Sweep, outcomes: Sequence[tuple[Point, Outcome]]) -> Finding:
    outcomes = _by_head(sweep, outcomes)
    done = [(point, results) for point, results in outcomes if isinstance(results, tuple)]
    names = list(dict.fromkeys(name for point, _ in outcomes for name in point.settings))

    def cells_of(point: Point, results: Sequence[Result]) -> dict[str, str]:
        return _cells(results) | (_costs(sweep, point, results[0]) if sweep.costs else {})

    columns = list(dict.fromkeys(name for point, results in done for name in cells_of(point, results))) or ["outcome"]
    rows = []
    for point, outcome in outcomes:
        set_to = [yaml_text(point.settings[name]) if name in point.settings else "" for name in names]
        if isinstance(outcome, tuple):
            cells = cells_of(point, outcome)
        else:
            cells = {columns[0]: f"failed: {first_line(outcome)}"}
        rows.append((*set_to, *(cells.get(name, "") for name in columns)))
    images = f", {done[0][1][0].num_images} images of {done[0][1][0].provenance.data}" if done else ""
    suites = " and ".join(map(yaml_text, sweep.suites))
    table = Table(sweep.info.about or sweep.name, (*names, *columns), tuple(rows))
    groups = grouped([(point, _measures(results)) for point, results in done])
    of_seeds = (seed_table(groups), *difference_tables(groups, sweep.paired)) if _has_seeds(groups) else ()
    over = "seeds, by the t distribution" if of_seeds else "the choice of images"
    return Finding(
        f"Sweep of {sweep.recipe}",
        f"{suites}{images}. Bands and whiskers are 95 % intervals over {over}.",
        tables=(table, *of_seeds),
        charts=(*_trade_off(sweep, done), *_charts(groups, names)),
        facts={"sweep": to_dict(sweep), "command": command()},
    )


def _by_head(sweep: Sweep, outcomes: Sequence[tuple[Point, Outcome]]) -> list[tuple[Point, Outcome]]:
    """A row for each head, with the results of all suites."""
    rows: list[tuple[Point, Outcome]] = []
    count = len(sweep.suites)
    for point, outcome in outcomes:
        for number, head in enumerate(sweep.heads or (None,)):
            settings = point.settings if head is None else {**point.settings, "head": head}
            own = outcome[number * count : (number + 1) * count] if isinstance(outcome, tuple) else outcome
            rows.append((Point(settings), own))
    return rows


def _costs(sweep: Sweep, point: Point, result: Result) -> dict[str, str]:
    """Of the model, and of the training that made it: the run that the result lies in and the one that it started from.

    Methods that share a first phase are then compared with those that are trained at once.
    """
    sizes = {name: result.provenance.model.get(name) for name in ("parameters", "multiply_adds")}
    cells = {name.replace("_", "-"): short_count(size) for name, size in sizes.items() if size}
    if result.folder is None:
        return cells
    run, first = Path(result.folder).parents[1], first_point(sweep, point)
    seconds = [_cpu_seconds(run), *([] if first is None else [_cpu_seconds(first_folder(run.parent, first))])]
    known = [one for one in seconds if one is not None]
    return cells | ({"CPU hours": f"{sum(known) / 3600:.2f}"} if len(known) == len(seconds) else {})


def _cpu_seconds(run: Path) -> float | None:
    """Of a training; None where it isn't known."""
    file = run / "cost.json"
    cost = read_json(file, TypeAdapter(dict[str, Any]), "cost of a run") if is_file(file) else {}
    seconds = cost.get("cpu_seconds")
    return float(seconds) if isinstance(seconds, int | float) else None


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
            shown = [one for one in result.measures if not one.is_detail and one.name != CLEAN_ACCURACY]
            cells |= {f"{one.name}{of}": measure_text(replace(one, interval=None)) for one in shown}
        if result.control is not None:
            cells[f"{result.control.name}{of}"] = percent(result.control.measures[-1].value)
    return cells


def _trade_off(sweep: Sweep, done: Done) -> tuple[Chart, ...]:
    """Clean against robust accuracy: a curve for each method along the setting `sweep.curve`, and the Pareto front."""
    if sweep.curve is None:
        return ()
    curves: dict[str, dict[str, list[tuple[Measure, Measure]]]] = {}
    suite = ""
    for point, results in done:
        attacked = [result for result in results if result.stages]
        if not attacked:
            continue
        suite = attacked[0].title
        along = [yaml_text(value) for name, value in point.settings.items() if name.rpartition(".")[2] == sweep.curve]
        others = {name: value for name, value in point.settings.items() if name.rpartition(".")[2] != sweep.curve}
        method = ", ".join(_changing(Point(others), [point for point, _ in done], without="seed")) or "all runs"
        pair = attacked[0].clean, attacked[0].headline
        curves.setdefault(method, {}).setdefault(", ".join(along), []).append(pair)
    lines = [_curve(name, points) for name, points in curves.items()]
    if not lines:
        return ()
    note = f"Labels: {sweep.curve}. Whiskers: 95 % intervals over the choice of images; of several seeds, means."
    title = "Clean against robust accuracy"
    front = _front([place for line in lines for place in zip(line.xs, line.ys, strict=True)])
    return (
        Chart(title, "clean accuracy", (*lines, front), in_percent=True, kind="scatter", y_title=f"robust ({suite})",
              x_in_percent=True, note=note),
    )  # fmt: skip


def _curve(name: str, points: Mapping[str, Sequence[tuple[Measure, Measure]]]) -> Line:
    """Means over seeds; the images are the same for all, so that an interval over these is no narrower for a mean."""
    cleans, robusts = ([[pair[side] for pair in pairs] for pairs in points.values()] for side in (0, 1))
    return Line(
        name,
        tuple(mean(one.value for one in measures) for measures in cleans),
        tuple(mean(one.value for one in measures) for measures in robusts),
        intervals=tuple(map(_mean_interval, robusts)),
        ranges=tuple((min(one.value for one in many), max(one.value for one in many)) for many in robusts),
        labels=tuple(points),
        joined=True,
        x_intervals=tuple(map(_mean_interval, cleans)),
    )


def _mean_interval(measures: Sequence[Measure]) -> Interval:
    pairs = [one.interval or (one.value, one.value) for one in measures]
    return mean(low for low, _ in pairs), mean(high for _, high in pairs)


def _front(points: Sequence[tuple[float, float | None]]) -> Line:
    """The points that no other beats in one accuracy without losing in the other."""
    known = {(x, y) for x, y in points if y is not None}
    best = sorted(p for p in known if not any(q != p and q[0] >= p[0] and q[1] >= p[1] for q in known))
    xs, ys = zip(*best, strict=True) if best else ((), ())
    return Line("Pareto front", tuple(xs), tuple(ys), sizes=(0.0,) * len(xs), joined=True)


def _has_seeds(groups: Sequence[Group]) -> bool:
    return any(len(group.runs) > 1 for group in groups)


def _charts(groups: Sequence[Group], names: Sequence[str]) -> tuple[Chart, ...]:
    """Accuracy along the setting with the most numbers; in rows where there are words, or what would crowd."""
    if len(groups) < 2:
        return ()
    points = [group.point for group in groups]
    of_seeds = ", means over seeds" if _has_seeds(groups) else ""
    numbers = {name: [_number(point.settings.get(name)) for point in points] for name in names}
    axes = [name for name, values in numbers.items() if None not in values and len(set(values)) > 1]
    axis = max(axes, key=lambda name: len(set(numbers[name])), default=None)
    if axis is not None and not _is_crowded([number for number in numbers[axis] if number is not None]):
        titles = [", ".join(_changing(point, points, without=axis)) for point in points]
        with_clean = len(set(titles)) == 1
        rows = [
            Row(title, _lines(title, group.mean(), with_clean), x)
            for title, x, group in zip(titles, numbers[axis], groups, strict=True)
        ]
        rows.sort(key=lambda row: (titles.index(row.name), row.at))
        chart = compared(f"Accuracy against {axis}{of_seeds}", axis, rows, axis)[1]
        if len(chart.lines) <= MOST_LINES:
            return (chart,)
    rows = [Row(", ".join(_changing(group.point, points)) or group.point.title, group.mean()) for group in groups]
    return (compared(f"Accuracy{of_seeds}", "", rows)[1],)


def _is_crowded(numbers: Sequence[float]) -> bool:
    """Whether two of them would overlap on a linear axis."""
    places = sorted(set(numbers))
    return min(after - before for before, after in pairwise(places)) < 0.04 * (places[-1] - places[0])


def _changing(point: Point, points: Sequence[Point], without: str = "") -> list[str]:
    """What a point sets that others set otherwise, or not at all; by the last part of its name where that is enough."""
    names = list(dict.fromkeys(name for other in points for name in other.settings))
    ends = [name.rpartition(".")[2] for name in names]
    parts = []
    for name, value in point.settings.items():
        others = {yaml_text(other.settings[name]) if name in other.settings else "" for other in points}
        if len(others) > 1 and name != without:
            end = name.rpartition(".")[2]
            parts.append(f"{end if ends.count(end) == 1 else name}={yaml_text(value)}")
    return parts


def _measures(results: Sequence[Result]) -> dict[str, Measure]:
    """Clean accuracy, or what else was measured without an attack; then robust accuracies."""
    attacked = [result for result in results if result.stages]
    clean = [result.clean for result in results if result.has(CLEAN_ACCURACY)]
    first = results[0].headline
    measures = {"clean": clean[0]} if clean else {first.name.removesuffix("_accuracy"): first}
    for result in attacked:
        suite = result.title if len(attacked) > 1 else ""
        measures[suite or _ROBUST] = result.headline
        if result.control is not None:
            measures[_joined(suite, result.control.name)] = result.control.measures[-1]
    return measures


def _lines(title: str, measures: Measures, with_clean: bool) -> dict[str, Measure]:
    """Measures by the name of their line."""
    names = list(measures)[0 if with_clean or len(measures) == 1 else 1 :]
    return {_joined(title, "" if title and name == _ROBUST else name): measures[name] for name in names}


def _joined(*words: str) -> str:
    return ", ".join(filter(None, words))


def _number(value: Any) -> float | None:
    try:
        number = float(parse_number(value))
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) and not isinstance(value, bool) else None

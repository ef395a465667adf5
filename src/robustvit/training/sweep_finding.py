"""The outcome of a sweep: one table and one plot, in the form that the report shows."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from robustvit.core.component import parse_number, to_dict
from robustvit.core.errors import UserError, first_line
from robustvit.core.finding import Chart, Finding, Line, Table, percent
from robustvit.core.run import command
from robustvit.evaluation.result import EvalResult, wilson_interval
from robustvit.training.sweep_grid import Point, Sweep, yaml_text

Outcome = tuple[EvalResult, ...] | UserError
"""A result for each suite of the sweep, or why there is none."""
MOST_LINES = 6
"""That a chart can hold apart."""
Done = Sequence[tuple[Point, tuple[EvalResult, ...]]]


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
    images = f", {done[0][1][0].num_images} images of {done[0][1][0].data}" if done else ""
    table = Table(sweep.about or sweep.name, (*names, *(columns or ["outcome"])), tuple(rows))
    return Finding(
        f"Sweep of {sweep.recipe}",
        f"{' and '.join(sweep.suites)}{images}. Bands and whiskers are 95 % intervals over the choice of images.",
        tables=(table,),
        charts=_charts(done, names),
        facts={"sweep": to_dict(sweep), "command": command()},
    )


def _cells(results: Sequence[EvalResult]) -> dict[str, str]:
    """A column for each accuracy; next to searched attention factors, those with random ones."""
    cells = {"clean": percent(_clean(results)[0])}
    attacked = _attacked(results)
    for result in attacked:
        of = f" ({result.suite})" if len(attacked) > 1 else ""
        low, high = result.interval
        cells |= {f"robust{of}": percent(result.robust_accuracy), f"95 %{of}": f"{percent(low)} to {percent(high)}"}
        if control := (result.attention or {}).get("control"):
            cells[f"random factors{of}"] = percent(control["robust_accuracy"])
    return cells


def _clean(results: Sequence[EvalResult]) -> tuple[float, tuple[float, float]]:
    """Of the model as it is, which the paper's protocol for scaled attention doesn't judge."""
    originals = [(result.attention or {}).get("original_clean_accuracy") for result in results]
    if None in originals:
        plain = results[originals.index(None)]
        return plain.clean_accuracy, plain.clean_interval
    accuracy, count = float(originals[0] or 0), results[0].num_images
    return accuracy, wilson_interval(round(accuracy * count), count)


def _attacked(results: Sequence[EvalResult]) -> list[EvalResult]:
    """Without an attack there is no robust accuracy."""
    return [result for result in results if result.attacks]


def _charts(done: Done, names: Sequence[str]) -> tuple[Chart, ...]:
    """Accuracy along the setting with the most numbers; in rows where there are words, or what would crowd."""
    if len(done) < 2:
        return ()
    numbers = {name: [_number(point.settings.get(name)) for point, _ in done] for name in names}
    axes = [name for name, values in numbers.items() if None not in values and len(set(values)) > 1]
    axis = max(axes, key=lambda name: len(set(numbers[name])), default=None)
    if axis is not None and not _is_crowded([number for number in numbers[axis] if number is not None]):
        along: dict[str, list[tuple[float, tuple[EvalResult, ...]]]] = {}
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


def _lines(along: Mapping[str, list[tuple[float, tuple[EvalResult, ...]]]]) -> tuple[Line, ...]:
    lines = []
    for name, points in along.items():
        points.sort(key=lambda each: each[0])
        xs, first = tuple(x for x, _ in points), points[0][1]
        if len(along) == 1 or not _attacked(first):
            lines.append(_line([name, "clean"], xs, [_clean(results) for _, results in points]))
        for place, result in enumerate(_attacked(first)):
            suite = result.suite if len(_attacked(first)) > 1 else "" if name else "robust"
            mine = [_attacked(results)[place] for _, results in points]
            lines.append(_line([name, suite], xs, [(each.robust_accuracy, each.interval) for each in mine]))
            controls = [(each.attention or {}).get("control") for each in mine]
            if all(controls):
                chance = [(control["robust_accuracy"], tuple(control["interval"])) for control in controls if control]
                words = [name, suite if suite != "robust" else "", "random factors"]
                lines.append(_line(words, xs, chance))
    return tuple(lines)


def _line(words: Sequence[str], xs: tuple[float, ...], values: Sequence[tuple[float, tuple[float, float]]]) -> Line:
    accuracies, intervals = zip(*values, strict=True)
    return Line(", ".join(word for word in words if word), xs, accuracies, intervals)


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or value is None:
        return None
    try:
        number = float(parse_number(value))
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None

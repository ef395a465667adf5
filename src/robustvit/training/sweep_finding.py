"""What a sweep found: one table and one plot, in the form that the report shows."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from robustvit.core.component import parse_number, to_dict
from robustvit.core.errors import UserError, first_line
from robustvit.core.finding import Chart, Finding, Line, Table
from robustvit.core.run import command
from robustvit.evaluation.result import EvalResult
from robustvit.training.sweep_grid import Point, Sweep, yaml_text

Outcome = tuple[EvalResult, ...] | UserError
"""A result for each suite of the sweep, or why there is none."""
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
    """A column for each accuracy; beside searched attention factors, what random ones leave."""
    cells = {"clean": _percent(results[0].clean_accuracy)}
    for result in results:
        of = f" ({result.suite})" if len(results) > 1 else ""
        low, high = result.interval
        cells |= {f"robust{of}": _percent(result.robust_accuracy), f"95 %{of}": f"{_percent(low)} to {_percent(high)}"}
        if control := (result.attention or {}).get("control"):
            cells[f"random factors{of}"] = _percent(control["robust_accuracy"])
    return cells


def _charts(done: Done, names: Sequence[str]) -> tuple[Chart, ...]:
    """Robust accuracy along the setting with the most numbers; where none has numbers alone, in rows of words."""
    if len(done) < 2:
        return ()
    numbers = {name: [_number(point.settings.get(name)) for point, _ in done] for name in names}
    axes = [name for name, values in numbers.items() if None not in values and len(set(values)) > 1]
    if not axes:
        words = tuple(", ".join(_changing(point, names, done)) or point.title for point, _ in done)
        lines = _lines({"": [(float(place), results) for place, (_, results) in enumerate(done)]}, with_clean=True)
        return (Chart("Accuracy", "accuracy", lines, True, "dots", words),)
    axis = max(axes, key=lambda name: len(set(numbers[name])))
    along: dict[str, list[tuple[float, tuple[EvalResult, ...]]]] = {}
    for x, (point, results) in zip(numbers[axis], done, strict=True):
        others = Point({name: value for name, value in point.settings.items() if name != axis})
        assert x is not None
        along.setdefault(", ".join(_changing(others, names, done)), []).append((x, results))
    return (Chart(f"Robust accuracy against {axis}", axis, _lines(along), in_percent=True),)


def _changing(point: Point, names: Sequence[str], done: Done) -> list[str]:
    """What a point sets that others set otherwise."""
    values = {name: {yaml_text(other.settings.get(name)) for other, _ in done} for name in names}
    return [f"{name}={yaml_text(value)}" for name, value in point.settings.items() if len(values[name]) > 1]


def _lines(
    along: Mapping[str, list[tuple[float, tuple[EvalResult, ...]]]], with_clean: bool = False
) -> tuple[Line, ...]:
    lines = []
    for name, found in along.items():
        found.sort(key=lambda each: each[0])
        xs = tuple(x for x, _ in found)
        if with_clean:
            lines.append(Line("clean", xs, tuple(results[0].clean_accuracy for _, results in found)))
        for place, first in enumerate(found[0][1]):
            words = [name, first.suite if len(found[0][1]) > 1 else ""]
            mine = [results[place] for _, results in found]
            title = ", ".join(word for word in words if word) or "robust"
            accuracies = tuple(result.robust_accuracy for result in mine)
            lines.append(Line(title, xs, accuracies, tuple(result.interval for result in mine)))
            controls = [(result.attention or {}).get("control") for result in mine]
            if all(controls):
                chance = tuple(float(control["robust_accuracy"]) for control in controls if control)
                lines.append(Line(f"{title}, random factors" if title != "robust" else "random factors", xs, chance))
    return tuple(lines)


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or value is None:
        return None
    try:
        number = float(parse_number(value))
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"

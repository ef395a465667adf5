"""Error against the size of models over runs, and accuracy by group: as Bhojanapalli et al. (2021) plot them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from markupsafe import Markup

from robustvit.core.errors import UserError
from robustvit.core.figures import Chart, Fit, Line, Table
from robustvit.core.numbers import fitted_slope, short_count
from robustvit.core.result import CLEAN_ACCURACY, Measure
from robustvit.reporting.conditions import evaluation_name, question
from robustvit.reporting.drawing import drawn
from robustvit.reporting.read import Evaluation, Run, finite

MOST_BENCHMARKS = 12
"""Measures that are plotted."""
Size = Literal["parameters", "multiply_adds"]
TITLES: dict[Size, str] = {"parameters": "parameters", "multiply_adds": "multiply-adds of an image"}
METHOD = "least squares of log error on log size; interval by its standard error (t distribution)"


@dataclass(frozen=True)
class Point:
    """A model's accuracy."""

    name: str
    group: str
    family: str
    size: dict[Size, float | None]
    measure: Measure


@dataclass(frozen=True)
class Scaling:
    note: str
    table: Table
    plots: list[tuple[str, list[tuple[str, Markup, str]]]]
    """By benchmark: title, drawing and note of each."""


def scaling_plots(runs: Sequence[Run], names: dict[tuple[str, str, str], str]) -> Scaling:
    """`names` are those of the data."""
    benchmarks, left_out = _benchmarks(runs, names)
    several = {title: points for title, points in benchmarks.items() if len(points) > 1}
    if not several:
        why = "; ".join(left_out) or "no two of them were evaluated alike"
        raise UserError(f"report --scaling: needs two models with results of the same suite on the same images ({why})")
    shown = dict(list(several.items())[:MOST_BENCHMARKS])
    notes = [
        "Each point is a model. Slopes are by least squares of log error on log size, with 95 % intervals by its "
        "standard error (t distribution with two degrees of freedom fewer than models; two models have none).",
        f"Left out: {'; '.join(left_out)}." if left_out else "",
        f"Only {len(shown)} of {len(several)} measures are plotted." if len(shown) < len(several) else "",
    ]
    return Scaling(
        note=" ".join(filter(None, notes)),
        table=_table([point for points in shown.values() for point in points]),
        plots=[(title, _plots(points)) for title, points in shown.items()],
    )


def _benchmarks(
    runs: Sequence[Run], names: dict[tuple[str, str, str], str]
) -> tuple[dict[str, list[Point]], list[str]]:
    """Points by what was measured, and what has none."""
    found: dict[Any, dict[str, Point]] = {}
    titles: dict[Any, str] = {}
    left_out = []
    for run in runs:
        sized = [(one, size) for one in run.evaluations if (size := _size(one)) is not None]
        if not sized:
            reason = "no results" if not run.evaluations else "results without the size of the model"
            left_out.append(f"{run.name} has {reason}")
        for one, size in sized:
            for measure in filter(_is_plotted, one.result.measures):
                is_clean = measure.name == CLEAN_ACCURACY
                key = (is_clean, one.data) if is_clean else (measure.name, question(one))
                point = Point(evaluation_name(run, one), run.group, _family(one), size, measure)
                found.setdefault(key, {})[f"{run.path} {one.weights}"] = point
                titles[key] = _title(one, measure, names)
    return {_unique(titles, key): list(points.values()) for key, points in found.items()}, left_out


def _is_plotted(measure: Measure) -> bool:
    return measure.is_accuracy and not measure.is_detail


def _unique(titles: dict[Any, str], key: Any) -> str:
    """With a number where other settings have the same title."""
    same = [other for other, title in titles.items() if title == titles[key]]
    return titles[key] if len(same) == 1 else f"{titles[key]} ({same.index(key) + 1})"


def _title(one: Evaluation, measure: Measure, names: dict[tuple[str, str, str], str]) -> str:
    """`Robust accuracy, pgd-20, Linf 8/255, cifar10/test, all 10000`."""
    words = measure.name.replace("_", " ")
    what = () if measure.name == CLEAN_ACCURACY else (one.result.suite, str(one.result.threat or ""))
    return ", ".join(filter(None, (words[:1].upper() + words[1:], *what, names[one.data], one.data[1])))


def _size(one: Evaluation) -> dict[Size, float | None] | None:
    model = one.result.provenance.model
    sizes: dict[Size, float | None] = {name: finite(model.get(name)) for name in TITLES}
    return sizes if (sizes["parameters"] or 0) > 0 else None


def _family(one: Evaluation) -> str:
    """`vit` of `vit_tiny_patch16_224`, `resnet` of `resnet50`."""
    name = str(one.result.provenance.model.get("name", "")).rpartition(".")[2] or "model"
    return re.sub(r"(?<!v)\d+$", "", name.partition("_")[0]) or name


def _line_names(points: Sequence[Point]) -> list[str]:
    """The group, the family, or both where a group has several families."""
    families: dict[str, set[str]] = {}
    for point in points:
        families.setdefault(point.group, set()).add(point.family)
    return [
        point.family if not point.group else point.group if len(families[point.group]) == 1
        else f"{point.family}, {point.group}"
        for point in points
    ]  # fmt: skip


def _plots(points: Sequence[Point]) -> list[tuple[str, Markup, str]]:
    charts = [chart for size in TITLES if (chart := _error_chart(points, size)) is not None]
    charts.append(_group_chart(points))
    return [(chart.title, drawn(chart), chart.note) for chart in charts]


def _error_chart(points: Sequence[Point], size: Size) -> Chart | None:
    """None where no two models have a size and an error, which logarithms need."""
    groups: dict[str, list[tuple[Point, float]]] = {}
    perfect = []
    for point, line in zip(points, _line_names(points), strict=True):
        at = point.size[size]
        if at and point.measure.value < 1:
            groups.setdefault(line, []).append((point, at))
        elif at:
            perfect.append(point.name)
    if sum(map(len, groups.values())) < 2:
        return None
    note = f"No error, and so no place here: {', '.join(perfect)}." if perfect else ""
    lines = tuple(_error_line(name, sorted(members, key=lambda one: one[1])) for name, members in groups.items())
    return Chart(
        f"Error against {TITLES[size]}", TITLES[size], lines, in_percent=True, kind="scatter", y_title="error",
        x_log=True, y_log=True, note=note,
    )  # fmt: skip


def _error_line(name: str, members: Sequence[tuple[Point, float]]) -> Line:
    xs, errors = tuple(at for _, at in members), tuple(1 - point.measure.value for point, _ in members)
    intervals = [point.measure.interval for point, _ in members]
    known = tuple((1 - high, 1 - low) for low, high in (pair for pair in intervals if pair is not None))
    fit = None
    if len(set(xs)) > 1:
        slope, intercept, interval = fitted_slope(np.log10(xs), np.log10(errors))
        fit = Fit(slope, intercept, interval, METHOD)
    labels = tuple(point.name for point, _ in members)
    return Line(name, xs, errors, known if len(known) == len(xs) else (), labels=labels, fit=fit)


def _group_chart(points: Sequence[Point]) -> Chart:
    """A row for each group, a color for each family, an area for each size."""
    rows = list(dict.fromkeys(point.group or "no group" for point in points))
    by_group = len(rows) > 1 or bool(points[0].group)
    if not by_group:
        rows = list(dict.fromkeys(point.family for point in points))
    lines = []
    for family in dict.fromkeys(point.family for point in points):
        own = [point for point in points if point.family == family]
        places = tuple(float(rows.index((one.group or "no group") if by_group else one.family)) for one in own)
        labels, areas = tuple(one.name for one in own), tuple(one.size["parameters"] or 0.0 for one in own)
        lines.append(Line(family, places, tuple(one.measure.value for one in own), labels=labels, sizes=areas))
    note = "The area of a marker is in proportion to the number of parameters."
    title = f"Accuracy by {'group' if by_group else 'family'}"
    return Chart(title, "accuracy", tuple(lines), in_percent=True, kind="dots", rows=tuple(rows), note=note)


def _table(points: Sequence[Point]) -> Table:
    """A row for each model, and one more where images of another size make another count of multiply-adds."""
    rows = []
    for point in points:
        counts = (point.size["parameters"], point.size["multiply_adds"])
        texts = ("" if count is None else short_count(count) for count in counts)
        rows.append((point.name, point.group, point.family, *texts))
    columns = ("model", "group", "family", "parameters", "multiply-adds")
    return Table("Models", columns, tuple(dict.fromkeys(rows)))

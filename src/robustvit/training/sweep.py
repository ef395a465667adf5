"""A grid of recipes: each point a run folder, trained and evaluated in turn; what exists is not computed again.

The outcome is one table and one plot, in the form that the report shows.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import yaml

from robustvit.core.component import to_dict
from robustvit.core.errors import UserError, first_line
from robustvit.core.figures import Chart, Table, percent
from robustvit.core.files import hash8, write_text
from robustvit.core.finding import Finding, Row, compared, interval_text, write_finding
from robustvit.core.numbers import parse_number
from robustvit.core.progress import say
from robustvit.core.result import CLEAN_ACCURACY, Measure, Result
from robustvit.core.run import RunFolder, command
from robustvit.core.summary import measure_text
from robustvit.evaluation import Attacked, evaluate, evaluator_from, open_subject, own_data
from robustvit.models import Normalized, load_model
from robustvit.models.create import describe
from robustvit.training.opening import open_recipe
from robustvit.training.recipe import Recipe, recipe_from
from robustvit.training.sweep_grid import Point, Sweep, yaml_text
from robustvit.training.train import train

Outcome = tuple[Result, ...] | UserError
"""A result for each suite of the sweep, or why there is none."""
MOST_LINES = 6
"""That a chart can hold apart."""
Done = Sequence[tuple[Point, tuple[Result, ...]]]


def check_sweep(sweep: Sweep) -> list[tuple[Point, Recipe]]:
    """The points with their recipes; raises every error that needs no data, which may be on another machine."""
    checked: list[tuple[Point, Recipe]] = []
    models: dict[str, Normalized] = {}
    for point in sweep.points():
        with _naming(point):
            recipe = recipe_from(sweep.recipe, point.overrides)
            for other, known in checked:
                if known == replace(recipe, name=known.name):  # another name makes no other recipe
                    raise UserError(f"the same recipe as {other.title}; leave one of them out")
            checked.append((point, recipe))
            name = str(recipe.model)
            if name not in models:  # most sweeps change something else
                with torch.device("meta"):
                    models[name] = recipe.model.build()
            for phase in recipe.phases:
                phase.optimizer.build(models[name])
            for suite in sweep.suites:
                evaluator = evaluator_from(suite, recipe.threat)
                if isinstance(evaluator, Attacked):
                    evaluator.plan(describe(models[name])["num_classes"])
    return checked


def run_sweep(sweep: Sweep, root: Path, quiet: bool = False) -> list[tuple[Point, Outcome]]:
    """Every point trained and evaluated, in order; one that fails is recorded, and the others continue."""
    points, checked = sweep.points(), check_sweep(sweep)
    for point, recipe in checked:
        with _naming(point):
            _open_point(sweep, recipe, root / point.folder)
    folder = RunFolder(root).analyses / f"sweep-{hash8(str([sweep.recipe, points, sweep.suite, sweep.images]))}"
    write_text(folder / "sweep.yaml", yaml.safe_dump(to_dict(sweep), sort_keys=False))
    report = (lambda text: None) if quiet else say
    results: list[tuple[Point, Outcome]] = []
    for number, (point, recipe) in enumerate(checked, start=1):
        report(f"{number} of {len(points)}: {point.title}")
        try:
            results.append((point, _run_point(sweep, recipe, root / point.folder, quiet)))
        except Exception as error:  # a run that fails must not stop the others
            why = error if isinstance(error, UserError) else UserError(f"{type(error).__name__}: {first_line(error)}")
            results.append((point, why))
            report(f"failed: {why}")
    write_finding(folder, sweep_finding(sweep, results))
    return results


def _open_point(sweep: Sweep, recipe: Recipe, run: Path) -> None:
    """Errors in the data, the initial weights or the suites, which would otherwise show hours later."""
    model = open_recipe(recipe)[2]
    if recipe.start is not None and not any((run / "checkpoints").glob("*")):
        recipe.start(model)
    of_own_data = [suite for suite in sweep.suites if own_data(suite) is not None]
    suites = [suite for suite in sweep.suites if suite not in of_own_data]
    for data, begun in [(recipe.data, suites), *((own_data(suite), [suite]) for suite in of_own_data)]:
        with open_subject(model, data, images=sweep.images, device=recipe.device).ready() as subject:
            for suite in begun:
                evaluator_from(suite, recipe.threat).begin(subject)


@contextmanager
def _naming(point: Point) -> Iterator[None]:
    try:
        yield
    except UserError as error:
        raise UserError(f"{point.title}: {error}") from None


def _run_point(sweep: Sweep, recipe: Recipe, folder: Path, quiet: bool) -> tuple[Result, ...]:
    run = train(recipe, run=folder, quiet=quiet)
    file = run.checkpoint()
    model = load_model(file)
    options: dict[str, Any] = {"threat": recipe.threat, "images": sweep.images, "device": recipe.device}
    options |= {"run": run.path, "checkpoint": {"path": str(file), "name": folder.name}, "quiet": quiet}
    data = (recipe.data if own_data(suite) is None else None for suite in sweep.suites)
    return tuple(evaluate(model, one, suite=suite, **options) for one, suite in zip(data, sweep.suites, strict=True))


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
    suites = " and ".join(map(yaml_text, sweep.suites))
    table = Table(sweep.info.about or sweep.name, (*names, *columns), tuple(rows))
    return Finding(
        f"Sweep of {sweep.recipe}",
        f"{suites}{images}. Bands and whiskers are 95 % intervals over the choice of images.",
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
            cells |= {f"{measure.name}{of}": measure_text(replace(measure, interval=None))}
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
    """By the name of their line: clean accuracy, or what else was measured without an attack, and robust accuracies."""
    attacked = [result for result in results if result.stages]
    measures: dict[str, Measure] = {}
    if with_clean or not attacked:
        clean = [result.clean for result in results if result.has(CLEAN_ACCURACY)]
        first = results[0].headline
        measures |= {"clean": clean[0]} if clean else {first.name.removesuffix("_accuracy"): first}
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

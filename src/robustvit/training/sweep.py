"""A grid of recipes: each point a run folder, trained and evaluated in turn; what exists is not computed again."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import yaml

from robustvit.core.component import to_dict
from robustvit.core.errors import UserError, first_line
from robustvit.core.files import hash8, write_text
from robustvit.core.finding import write_finding
from robustvit.core.progress import say
from robustvit.core.result import Result
from robustvit.core.run import RunFolder
from robustvit.evaluation import Attacked, evaluate, evaluator_from, open_subject
from robustvit.models import Normalized, load_model
from robustvit.models.create import describe
from robustvit.training.opening import open_recipe
from robustvit.training.recipe import Recipe, recipe_from
from robustvit.training.sweep_finding import Outcome, sweep_finding
from robustvit.training.sweep_grid import Point, Sweep
from robustvit.training.train import train


def check_sweep(sweep: Sweep) -> None:
    """Every error that needs no data, which may be on another machine."""
    known: dict[str, Recipe] = {}
    models: dict[str, Normalized] = {}
    for point in sweep.points():
        with _naming(point):
            recipe = recipe_from(sweep.recipe, point.overrides)
            recipe = replace(recipe, name=sweep.name)  # which makes no other recipe
            for title, other in known.items():
                if other == recipe:
                    raise UserError(f"the same recipe as {title}; leave one of them out")
            known[point.title] = recipe
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


def run_sweep(sweep: Sweep, root: Path, quiet: bool = False) -> list[tuple[Point, Outcome]]:
    """Every point trained and evaluated, in order; one that fails is recorded, and the others continue."""
    points = sweep.points()
    check_sweep(sweep)
    for point in points:
        with _naming(point):
            _open_point(sweep, point, root)
    folder = RunFolder(root).analyses / f"sweep-{hash8(str([sweep.recipe, points, sweep.suite, sweep.images]))}"
    write_text(folder / "sweep.yaml", yaml.safe_dump(to_dict(sweep), sort_keys=False))
    report = (lambda text: None) if quiet else say
    results: list[tuple[Point, Outcome]] = []
    for number, point in enumerate(points, start=1):
        report(f"{number} of {len(points)}: {point.title}")
        try:
            results.append((point, _run_point(sweep, point, root, quiet)))
        except Exception as error:  # a run that fails must not stop the others
            why = error if isinstance(error, UserError) else UserError(f"{type(error).__name__}: {first_line(error)}")
            results.append((point, why))
            report(f"failed: {why}")
    write_finding(folder, sweep_finding(sweep, results))
    return results


def _open_point(sweep: Sweep, point: Point, root: Path) -> None:
    """Errors in the data, the initial weights or the suites, which would otherwise show hours later."""
    recipe = recipe_from(sweep.recipe, point.overrides)
    model = open_recipe(recipe)[2]
    if recipe.start is not None and not any((root / point.folder / "checkpoints").glob("*")):
        recipe.start(model)
    with open_subject(model, recipe.data, images=sweep.images, device=recipe.device).ready() as subject:
        for suite in sweep.suites:
            evaluator_from(suite, recipe.threat).begin(subject)


@contextmanager
def _naming(point: Point) -> Iterator[None]:
    try:
        yield
    except UserError as error:
        raise UserError(f"{point.title}: {error}") from None


def _run_point(sweep: Sweep, point: Point, root: Path, quiet: bool) -> tuple[Result, ...]:
    run = train(sweep.recipe, run=root / point.folder, overrides=point.overrides, quiet=quiet)
    recipe = recipe_from(sweep.recipe, point.overrides)
    file = run.checkpoint()
    model = load_model(file)
    options: dict[str, Any] = {"threat": recipe.threat, "images": sweep.images, "device": recipe.device}
    options |= {"run": run.path, "checkpoint": {"path": str(file), "name": point.folder}, "quiet": quiet}
    return tuple(evaluate(model, recipe.data, suite=suite, **options) for suite in sweep.suites)

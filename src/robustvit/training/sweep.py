"""A grid of recipes: each point a run folder, trained and evaluated in turn; what exists is not computed again.

The outcome is one table and one plot, in the form that the report shows.
"""

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import yaml

from robustvit.core.component import to_dict
from robustvit.core.errors import UserError, first_line
from robustvit.core.files import hash8, write_text
from robustvit.core.finding import write_finding
from robustvit.core.processes import run_processes
from robustvit.core.progress import say
from robustvit.core.result import Result
from robustvit.core.run import RunFolder
from robustvit.core.world import World, own_device, resolve_device
from robustvit.data.base import Dataset
from robustvit.evaluation import Attacked, evaluate, evaluator_from, open_subject, own_data
from robustvit.evaluation.store import require_shared
from robustvit.models import Normalized, load_model
from robustvit.models.create import describe
from robustvit.models.heads import check_head
from robustvit.models.start import Start
from robustvit.training.opening import open_recipe
from robustvit.training.recipe import Recipe, recipe_from
from robustvit.training.sweep_finding import Outcome, sweep_finding
from robustvit.training.sweep_first import first_folder, first_point
from robustvit.training.sweep_grid import Point, Sweep
from robustvit.training.train import train


def check_sweep(sweep: Sweep) -> list[tuple[Point, Recipe]]:
    """The points with their recipes; raises every error that needs no data, which may be on another machine."""
    checked: list[tuple[Point, Recipe]] = []
    models: dict[str, Normalized] = {}
    for point in sweep.points():
        with _naming(point):
            recipe = recipe_from(sweep.recipe_of(point), point.overrides)
            if (first := first_point(sweep, point)) is not None:
                recipe_from(sweep.recipe_of(first), first.overrides)
            for other, known in checked:
                same = known == replace(recipe, name=known.name)  # another name makes no other recipe
                if same and first_point(sweep, other) == first:
                    raise UserError(f"the same recipe as {other.title}; leave one of them out")
            checked.append((point, recipe))
            name = str(recipe.model)
            if name not in models:  # most sweeps change something else
                with torch.device("meta"):
                    models[name] = recipe.model.build()
            for head in sweep.heads:
                check_head(models[name], head)
            for phase in recipe.phases:
                phase.optimizer.build(models[name])
            for suite in sweep.suites:
                evaluator = evaluator_from(suite, recipe.threat)
                if isinstance(evaluator, Attacked):
                    evaluator.plan(describe(models[name])["num_classes"])
    return checked


def run_sweep(
    sweep: Sweep, root: Path, quiet: bool = False, processes: int = 1, world: World | None = None
) -> list[tuple[Point, Outcome]]:
    """Every point trained and evaluated, in order; one that fails is recorded, and the others continue.

    Several `processes` on this machine, or those of a launcher's `world`, take every n-th point each before; the others
    of a world then return nothing.
    """
    world = world or World()
    points, checked = sweep.points(), check_sweep(sweep)
    for point, recipe in checked:
        with _naming(point):
            _open_point(sweep, point, recipe, root / point.folder)
    for folder, first in _firsts(sweep, points, root).items():
        with _naming(first):
            _open_training(recipe_from(sweep.recipe_of(first), first.overrides), folder)
    require_shared(root, world, "every process trains some of the runs there")
    for is_first in (True, False):
        if processes > 1:
            for _, recipe in checked:
                _own_world(recipe, World(processes - 1, processes))
            run_processes(processes, _run_share, {"sweep": sweep, "root": root, "is_first": is_first}, root)
        elif world.size > 1:
            _run_share(world=world, sweep=sweep, root=root, is_first=is_first)
            world.barrier()
    if not world.is_first:
        return []
    question = [sweep.recipe, points, sweep.suite, sweep.images, *filter(None, (sweep.heads, sweep.first))]
    folder = RunFolder(root).analyses / f"sweep-{hash8(str(question))}"
    write_text(folder / "sweep.yaml", yaml.safe_dump(to_dict(sweep), sort_keys=False))
    report = (lambda text: None) if quiet else say
    results: list[tuple[Point, Outcome]] = []
    for number, (point, recipe) in enumerate(checked, start=1):
        report(f"{number} of {len(points)}: {point.title}")
        try:
            results.append((point, _run_point(sweep, point, recipe, root, quiet, World())))
        except Exception as error:  # a run that fails must not stop the others
            why = error if isinstance(error, UserError) else UserError(f"{type(error).__name__}: {first_line(error)}")
            results.append((point, why))
            report(f"failed: {why}")
    write_finding(folder, sweep_finding(sweep, results))
    return results


def _run_share(*, world: World, sweep: Sweep, root: Path, is_first: bool) -> None:
    """What a process does of the runs that others start from, or of the points; what fails is tried once more later."""
    checked = check_sweep(sweep)
    if is_first:
        firsts = _firsts(sweep, [point for point, _ in checked], root)
        for folder, first in list(firsts.items())[world.rank :: world.size]:
            with suppress(UserError):
                _train_first(sweep, first, folder, True, world)
        return
    for point, recipe in checked[world.rank :: world.size]:
        say(f"process {world.rank + 1} of {world.size}: {point.title}")
        try:
            _run_point(sweep, point, recipe, root, True, world)
        except Exception as error:  # the first process says why, unless it succeeds
            say(f"process {world.rank + 1} of {world.size}: {point.title}: {first_line(error)}; tried again at the end")


def sweep_commands(sweep: Sweep, root: Path) -> list[str]:
    """How to train every run by itself, in an order that works."""
    firsts: dict[str, None] = {}
    commands = []
    for point in sweep.points():
        more: list[str] = []
        if (first := first_point(sweep, point)) is not None:
            folder = first_folder(root, first)
            firsts[first.command(sweep.recipe_of(first), folder)] = None
            more = [f"start.weights={folder}"]
        commands.append(point.command(sweep.recipe_of(point), root / point.folder, more))
    return [*firsts, *commands]


def _open_point(sweep: Sweep, point: Point, recipe: Recipe, run: Path) -> None:
    """Errors in the data, the initial weights or the suites, which would otherwise show hours later."""
    begins = replace(recipe, start=None) if sweep.first_of(point) is not None else recipe
    model = _open_training(begins, run)
    of_own_data = [suite for suite in sweep.suites if own_data(suite) is not None]
    suites = [suite for suite in sweep.suites if suite not in of_own_data]
    for data, begun in [(recipe.data, suites), *((own_data(suite), [suite]) for suite in of_own_data)]:
        images = sweep.images if data is recipe.data else _at_most(sweep, data)
        with open_subject(model, data, images=images, device=recipe.device).ready() as subject:
            for suite in begun:
                evaluator_from(suite, recipe.threat).begin(subject)


def _open_training(recipe: Recipe, run: Path) -> Normalized:
    """The model of a run with its initial weights, unless it has begun."""
    model = open_recipe(recipe)[2]
    if recipe.start is not None and not any((run / "checkpoints").glob("*")):
        recipe.start(model)
    return model


def _firsts(sweep: Sweep, points: Sequence[Point], root: Path) -> dict[Path, Point]:
    """The runs that points start from, by folder."""
    return {first_folder(root, first): first for point in points if (first := first_point(sweep, point)) is not None}


def _at_most(sweep: Sweep, own: Dataset | None) -> int | None:
    """How many images of a suite's own data are asked for: all where they are fewer than of the test set."""
    count = None if own is None else len(own.open("test"))
    return sweep.images if count is None or sweep.images is None else min(sweep.images, count)


@contextmanager
def _naming(point: Point) -> Iterator[None]:
    try:
        yield
    except UserError as error:
        raise UserError(f"{point.title}: {error}") from None


def _own_world(recipe: Recipe, world: World) -> World:
    """Of a process that trains by itself; where several do so, each has a GPU of its own."""
    if world.size == 1:
        return World(device=resolve_device(recipe.device))
    if world.device.startswith("cuda"):  # as a launcher has said
        return World(device=world.device if recipe.device in ("auto", "cuda") else resolve_device(recipe.device))
    return World(device=own_device(recipe.device, world.rank))


def _train_first(sweep: Sweep, first: Point, folder: Path, quiet: bool, world: World) -> RunFolder:
    recipe = recipe_from(sweep.recipe_of(first), first.overrides)
    return train(recipe, folder, quiet=quiet, world=_own_world(recipe, world))


def _run_point(sweep: Sweep, point: Point, recipe: Recipe, root: Path, quiet: bool, world: World) -> tuple[Result, ...]:
    folder, own = root / point.folder, _own_world(recipe, world)
    if (first := first_point(sweep, point)) is not None:
        begun = _train_first(sweep, first, first_folder(root, first), quiet, world)
        start = replace(recipe.start or Start(""), weights=str(begun.path))
        recipe = replace(recipe, start=start)
    run = train(recipe, run=folder, quiet=quiet, world=own)
    file = run.checkpoint()
    model = load_model(file)
    options: dict[str, Any] = {"threat": recipe.threat, "device": own.device, "run": run.path, "quiet": quiet}
    options["checkpoint"] = {"path": str(file), "name": folder.name}
    results = []
    for head, suite in itertools.product(sweep.heads or (None,), sweep.suites):
        brought = own_data(suite)
        data, images = recipe.data if brought is None else None, _at_most(sweep, brought)
        results.append(evaluate(model, data, suite=suite, head=head, images=images, **options))
    return tuple(results)

"""A table or figure at full scale: the commands of a cluster, what they cost, and what they need that is not here."""

import shlex
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from robustvit.core.component import to_dict
from robustvit.core.errors import UserError, first_line
from robustvit.core.progress import format_seconds
from robustvit.data.base import Dataset, Split
from robustvit.planning import Hardware, plan
from robustvit.reproduce.entries import Entry, commands_below
from robustvit.training.recipe import Recipe, recipe_from
from robustvit.training.sweep import sweep_commands
from robustvit.training.sweep_first import first_point
from robustvit.training.sweep_grid import sweep_from

TRAINING_IMAGES = {
    "cifar10": 50_000, "cifar100": 50_000, "imagenet": 1_281_167, "imagenet100": 128_117, "caltech101": 3_030,
    "flowers102": 1_020,
}  # fmt: skip
"""By data set, so that a plan needs none of them; of 100 classes, a tenth; of Caltech-101, 30 of each class."""
_FREE = {"name", "info", "seed", "start", "threat", "data", "log_every", "loggers", "device", "workers", "checkpoints"}
_FREE_IN_PHASES = {
    "optimizer", "schedule", "eps_schedule", "augmentation", "augmentation_schedule", "mixing", "generated",
}  # fmt: skip
_FREE_IN_OBJECTIVES = {"beta", "label_smoothing", "robust_weight"}
"""Settings that change no cost worth planning anew."""


def trainings(entry: Entry) -> dict[str, Recipe]:
    """Every training by its title, in the order of the commands; without starting weights that a sweep makes."""
    assert entry.full is not None
    found = {name: recipe_from(name) for name in entry.full.first}
    for name in entry.full.sweeps:
        sweep = sweep_from(name, [])
        for point in sweep.points():
            recipe = recipe_from(sweep.recipe_of(point), point.overrides)
            first = first_point(sweep, point)
            if first is not None:
                found[f"{sweep.name}, first: {first.title}"] = recipe_from(sweep.recipe_of(first), first.overrides)
            found[f"{sweep.name}: {point.title}"] = recipe if first is None else replace(recipe, start=None)
    return found | {name: recipe_from(name, entry.full.overrides) for name in entry.full.recipes}


def full_commands(entry: Entry, root: Path) -> Iterator[str]:
    """In an order that works; a sweep's last command evaluates what the ones before it trained."""
    full = entry.full
    assert full is not None
    starts = {recipe.start.weights for recipe in trainings(entry).values() if recipe.start is not None}
    runs = {name: _run_of(name, starts, root) for name in (*full.first, *full.recipes)}
    yield from (shlex.join(["robustvit", "train", name, "--run", runs[name]]) for name in full.first)
    for name in full.sweeps:
        sweep = sweep_from(name, [])
        yield from sweep_commands(sweep, root / sweep.name)
        yield shlex.join(["robustvit", "sweep", name, "--run", str(root / sweep.name)])
    for name in full.recipes:
        yield shlex.join([*full.training(name), "--run", runs[name]])
        yield full.evaluation(runs[name])
    yield from map(shlex.join, commands_below(full.commands, root))


def _run_of(name: str, starts: Collection[str | None], root: Path) -> str:
    """Below `root`, but for those that other recipes start from, which say where."""
    run = recipe_from(name).name
    return f"runs/{run}" if f"runs/{run}" in starts else str(root / run)


def costs(entry: Entry, hardware: Hardware) -> Iterator[str]:
    """A line for each training as it is planned, and their sum."""
    known: dict[str, tuple[float, float]] = {}
    sums, count = [0.0, 0.0], 0
    for title, recipe in trainings(entry).items():
        key = _cost_key(recipe)
        if key not in known:
            made = plan(recipe, hardware=hardware, images=_training_images(recipe))
            known[key] = made.seconds
            yield f"{title}: {_time(made.seconds)}, {made.operations / 1e15:,.3g} PFLOP"
        sums, count = [total + seconds for total, seconds in zip(sums, known[key], strict=True)], count + 1
    if count > 1:
        yield f"{count} trainings, evaluations not included: {_time(sums)} on {hardware}"


def _time(seconds: tuple[float, float] | list[float]) -> str:
    return f"{format_seconds(seconds[0])} to {format_seconds(seconds[1])}"


def _training_images(recipe: Recipe) -> int | None:
    settings = to_dict(recipe.data)
    name = str(settings.get("path") or settings["name"])
    return TRAINING_IMAGES.get("imagenet100" if (settings.get("select") or {}).get("classes") else name)


def _cost_key(recipe: Recipe) -> str:
    tree = {key: value for key, value in recipe.to_dict().items() if key not in _FREE}
    phases = []
    for phase in tree.pop("phases"):
        costly = {key: value for key, value in phase.items() if key not in _FREE_IN_PHASES}
        phases.append({**costly, "objective": _without(phase.get("objective"), _FREE_IN_OBJECTIVES)})
    return str([tree, phases])


def _without(tree: Any, keys: set[str]) -> Any:
    return {key: value for key, value in tree.items() if key not in keys} if isinstance(tree, dict) else tree


def _missing(dataset: Dataset, splits: Sequence[Split]) -> Iterator[str]:
    for split in splits:
        try:
            dataset.open(split)
        except UserError as error:
            yield first_line(error)


def absent(entry: Entry) -> list[str]:
    """What the trainings need and this machine lacks, each with where it belongs."""
    found: dict[str, None] = {}
    tried: set[str] = set()
    recipes = list(trainings(entry).values())
    made = {f"runs/{recipe.name}" for recipe in recipes}  # by the commands themselves
    for recipe in recipes:
        generated = [phase.generated.data for phase in recipe.phases if phase.generated is not None]
        parts: list[tuple[str, Dataset, tuple[Split, ...]]] = [("data", recipe.data, ("train", "test"))]
        parts += [("generated.data", one, ("train",)) for one in generated]
        for where, dataset, splits in parts:
            if (key := str(to_dict(dataset))) not in tried:
                tried.add(key)
                found |= dict.fromkeys(f"{where}: {problem}" for problem in _missing(dataset, splits))
        weights = None if recipe.start is None else recipe.start.weights
        if weights and "/" in weights and ":" not in weights and weights not in made and not Path(weights).exists():
            found[f"start.weights: no file or run folder '{weights}'"] = None
        if weights == "pretrained":
            found[f"start.weights: timm's pretrained weights of {recipe.model.name}, from a network once"] = None
    return list(found)

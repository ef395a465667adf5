"""A grid of recipes: each point a run folder, trained and judged in turn; what is there isn't done again."""

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from robustvit.core.component import settings
from robustvit.core.config import load_recipe, read_yaml, shipped_sweeps, validated
from robustvit.core.errors import UserError
from robustvit.core.files import is_file, write_text
from robustvit.core.progress import say
from robustvit.evaluation import evaluate
from robustvit.evaluation.result import EvalResult
from robustvit.evaluation.suites import suite_from
from robustvit.models import load_model
from robustvit.training.recipe import recipe_from
from robustvit.training.train import train

Values = tuple[Any, ...]


@settings
class Sweep:
    """What `robustvit sweep FILE` takes: a recipe, and the settings that change."""

    recipe: str
    name: str
    grid: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Setting to values; every combination is a run."""
    cases: tuple[Mapping[str, Any], ...] = ()
    """Or runs one by one, each a map of settings; with a grid, each case meets every combination."""
    suite: str = "pgd-20"
    images: int | None = None
    """Of the test set; None: all."""
    about: str = ""
    """The paper's table, and what it found."""

    def __post_init__(self) -> None:
        if not self.grid and not self.cases:
            raise ValueError("grid: at least one setting with its values, or cases")
        if any(not values for values in self.grid.values()):
            raise ValueError("grid: every setting needs values")
        suite_from(self.suite)

    def points(self) -> list["Point"]:
        names = list(self.grid)
        found = []
        for case in self.cases or ({},):
            for values in itertools.product(*self.grid.values()):
                chosen = {**case, **dict(zip(names, values, strict=True))}
                found.append(Point(tuple(f"{path}={_yaml(value)}" for path, value in chosen.items())))
        folders = [point.folder for point in found]
        if len(set(folders)) < len(folders):
            raise UserError(f"sweep '{self.name}': two points are the same")
        return found


@dataclass(frozen=True)
class Point:
    """One run of a sweep: its overrides."""

    overrides: tuple[str, ...]

    @property
    def folder(self) -> str:
        return re.sub(r"[^A-Za-z0-9.=+,-]+", "_", ",".join(self.overrides)).strip("_")[:120] or "as-it-is"

    def command(self, recipe: str, root: Path) -> str:
        import shlex

        options = [part for override in self.overrides for part in ("-o", override)]
        return shlex.join(["robustvit", "train", recipe, *options, "--run", str(root / self.folder)])


def sweep_from(what: str, overrides: Sequence[str], suite: str | None = None, images: int | None = None) -> Sweep:
    """A sweep file, or a recipe with `setting=value,value` on the command line."""
    path = Path(what)
    tree = read_yaml(path) if is_file(path) else None
    if tree is None and what in shipped_sweeps():
        tree = read_yaml(shipped_sweeps()[what])
    given: dict[str, Any] = {} if suite is None else {"suite": suite}
    given |= {} if images is None else {"images": images}
    if tree is not None and ("grid" in tree or "cases" in tree):
        if overrides:
            grid = {key: tuple(values) for key, values in _grid(overrides).items()}
            given["grid"] = {**tree.get("grid", {}), **grid}
        found: Sweep = validated(Sweep, {**tree, **given}, "sweep")
        return found
    if not overrides:
        raise UserError(f"sweep '{what}': say what changes, such as -o objective.beta=1,3,6")
    load_recipe(what)
    tree = {"recipe": what, "name": Path(what).stem, "grid": _grid(overrides), **given}
    made: Sweep = validated(Sweep, tree, "sweep")
    return made


def run_sweep(sweep: Sweep, root: Path, quiet: bool = False) -> list[tuple[Point, EvalResult]]:
    """Every point trained and judged, in order."""
    points = sweep.points()
    for point in points:
        recipe_from(sweep.recipe, point.overrides)  # all mistakes before the first hour
    write_text(root / "sweep.yaml", yaml.safe_dump(_plain(sweep), sort_keys=False))
    results = []
    for number, point in enumerate(points, start=1):
        if not quiet:
            say(f"{number} of {len(points)}: {', '.join(point.overrides)}")
        run = train(sweep.recipe, run=root / point.folder, overrides=point.overrides, quiet=quiet)
        recipe = recipe_from(sweep.recipe, point.overrides)
        file = run.checkpoints / f"{recipe.checkpoints.select}.safetensors"
        result = evaluate(
            load_model(file),
            recipe.data,
            suite=sweep.suite,
            threat=recipe.threat,
            images=sweep.images,
            run=run.path,
            device=recipe.device,
            checkpoint={"path": str(file), "name": point.folder},
            quiet=quiet,
        )
        results.append((point, result))
    return results


def _grid(overrides: Sequence[str]) -> dict[str, Any]:
    grid = {}
    for override in overrides:
        path, equals, text = override.partition("=")
        if not equals or not path.strip() or not text:
            raise UserError(f"-o {override}: expected path.to.setting=value,value, such as -o objective.beta=1,3,6")
        grid[path.strip()] = [yaml.safe_load(part) for part in _split(text)]
    return grid


def _split(text: str) -> list[str]:
    """At commas outside of brackets."""
    parts, depth = [""], 0
    for sign in text:
        depth += (sign in "[{(") - (sign in "]})")
        if sign == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += sign
    return parts


def _yaml(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, width=10_000).strip()
    return text.removesuffix("\n...").removesuffix("...").strip()


def _plain(sweep: Sweep) -> dict[str, Any]:
    return {
        "name": sweep.name,
        "recipe": sweep.recipe,
        "grid": {key: list(values) for key, values in sweep.grid.items()},
        "cases": [dict(case) for case in sweep.cases],
        "suite": sweep.suite,
        "images": sweep.images,
        "about": sweep.about,
    }

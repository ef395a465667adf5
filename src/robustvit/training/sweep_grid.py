"""What a sweep is: a recipe and the settings that change, expanded into points."""

import itertools
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import Field

from robustvit.core.component import settings
from robustvit.core.config import load_recipe, load_sweep, locate, shipped_recipes, shipped_sweeps, validated
from robustvit.core.errors import UserError, nearest, shortened
from robustvit.core.files import hash8
from robustvit.core.readers import parse_yaml
from robustvit.core.recipe_info import RecipeInfo, with_info
from robustvit.evaluation.evaluate import named_evaluator
from robustvit.evaluation.suite import suite_from

AnySuite = str | dict[str, Any]
"""Attacks or an evaluator, by name or as settings."""
OF_SWEEP = frozenset({"recipe", "first"})
"""What a point may set of the sweep itself."""
MOST_POINTS = 1000
"""Runs of a sweep: every two of them are compared before the first begins."""


@settings
class Sweep:
    """What `robustvit sweep FILE` takes: a recipe, and the settings that change."""

    recipe: str
    name: str
    grid: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Setting to values; every combination is a run. `recipe` and `first` may change, too."""
    cases: tuple[Mapping[str, Any], ...] = ()
    """Or runs one by one, each a map of settings; with a grid, each case meets every combination."""
    suite: AnySuite | tuple[AnySuite, ...] = "pgd-20"
    """Evaluates every run; each of several gets a column and a line."""
    images: Annotated[int, Field(ge=1)] | None = None
    """Of the test set, or of the images that a suite brings, if it has so many; None: all."""
    heads: tuple[str, ...] = ()
    """Of a model with several: every run is evaluated through each of these; none: its output."""
    first: str | None = None
    """A recipe that is trained once and that every run starts from. It takes a point's settings of the whole recipe,
    such as seed and model, and is trained once for each of these; settings of phases are the point's alone."""
    curve: str | None = None
    """The last part of the name of a setting, such as robust_weight: along it, clean against robust accuracy is drawn
    as a curve for each combination of the other settings; points that differ in the seed alone are averaged."""
    paired: str | None = None
    """A setting of the grid with two values, such as recipe: with several seeds, the difference between runs with the
    first and runs with the second is shown, seed by seed, and how it changes along the other settings."""
    costs: bool = False
    """Also show parameters, multiply-adds and hours of the processor, those of the run that `first` names included."""
    info: RecipeInfo = field(default_factory=RecipeInfo)
    """Expected numbers: row by row in the order of the points."""

    def __post_init__(self) -> None:
        if not self.grid and not self.cases:
            raise ValueError("grid: at least one setting with its values, or cases")
        if any(not values for values in self.grid.values()):
            raise ValueError("grid: every setting needs values")
        count = math.prod([len(self.cases) or 1, *map(len, self.grid.values())])
        if count > MOST_POINTS:
            raise ValueError(f"grid: {count:,} runs, where at most {MOST_POINTS:,} are allowed; split the sweep")
        both = sorted({name for case in self.cases for name in case if name in self.grid})
        if both:
            raise ValueError(f"{both[0]} is in both grid and cases; remove it from one")
        if not self.suites:
            raise ValueError("suite: at least one")
        if len(set(self.heads)) < len(self.heads):
            raise ValueError(f"heads: each once, not {', '.join(self.heads)}")
        ends = {name.rpartition(".")[2] for names in (self.grid, *self.cases) for name in names}
        if self.curve is not None and self.curve not in ends:
            advice = nearest(self.curve, sorted(ends))
            raise ValueError(f"curve: no setting of the grid or the cases is called '{self.curve}'{advice}")
        if self.paired is not None and len(self.grid.get(self.paired, ())) != 2:
            raise ValueError(f"paired: '{self.paired}' must be a setting of the grid with two values")
        for suite in self.suites:
            if named_evaluator(suite) is None:
                suite_from(suite)

    def recipe_of(self, point: "Point") -> str:
        return str(point.settings.get("recipe", self.recipe))

    def first_of(self, point: "Point") -> str | None:
        name = point.settings.get("first", self.first)
        return None if name is None else str(name)

    @property
    def suites(self) -> tuple[AnySuite, ...]:
        return self.suite if isinstance(self.suite, tuple) else (self.suite,)

    def points(self) -> list["Point"]:
        return [
            Point({**case, **dict(zip(self.grid, values, strict=True))})
            for case in self.cases or ({},)
            for values in itertools.product(*self.grid.values())
        ]


@dataclass(frozen=True)
class Point:
    """One run of a sweep: what it sets."""

    settings: Mapping[str, Any]

    @property
    def overrides(self) -> tuple[str, ...]:
        """What changes in its recipe."""
        return tuple(text for path, text in self._texts.items() if path not in OF_SWEEP)

    @property
    def _texts(self) -> dict[str, str]:
        return {path: f"{path}={yaml_text(value)}" for path, value in self.settings.items()}

    @property
    def folder(self) -> str:
        text = ",".join(self._texts.values()) or "as-it-is"
        name = re.sub(r"[^A-Za-z0-9.=+,_-]+", "_", text)[:120]
        # what was cut or cleaned away may be all that two points differ in
        return name if name == text else f"{name}-{hash8(text)}"

    @property
    def title(self) -> str:
        return ", ".join(self._texts.values()) or "as it is"

    def command(self, recipe: str, run: Path, more: Sequence[str] = ()) -> str:
        options = [part for override in (*self.overrides, *more) for part in ("-o", override)]
        return shlex.join(["robustvit", "train", recipe, *options, "--run", str(run)])


def sweep_from(what: str, overrides: Sequence[str], suite: str | None = None, images: int | None = None) -> Sweep:
    """A sweep file, or a recipe with `setting=value,value` on the command line."""
    place = locate(what, shipped_sweeps())
    tree = load_sweep(what) if place is not None else {}
    given: dict[str, Any] = {"suite": suite, "images": images}
    given = {key: value for key, value in given.items() if value is not None}
    if place is not None and {"recipe", "grid", "cases"} & set(tree):
        grid = tree.get("grid", {})
        if overrides and isinstance(grid, Mapping):
            given["grid"] = {**grid, **_grid(overrides)}
        sibling = str(place[0].parent / str(tree.get("recipe")))
        given |= {"recipe": sibling} if locate(sibling, {}) is not None else {}
    elif overrides:
        # next to the folder where `train` puts the recipe itself
        name = f"{load_recipe(what).get('name', Path(what).stem)}-sweep"
        tree = {"recipe": what, "name": name, "grid": _grid(overrides)}
    elif locate(what, shipped_recipes()) is None:
        raise UserError(f"no sweep or recipe '{what}'{nearest(what, [*shipped_sweeps(), *shipped_recipes()])}")
    else:
        raise UserError(f"sweep '{what}': say what changes, such as -o objective.beta=1,3,6")
    sweep: Sweep = validated(Sweep, with_info({**tree, **given}), "sweep")
    return sweep


def _grid(overrides: Sequence[str]) -> dict[str, Any]:
    grid = {}
    for override in overrides:
        path, _, text = (part.strip() for part in override.partition("="))
        if not path or not text:
            raise UserError(f"-o {override}: expected path.to.setting=value,value, such as -o objective.beta=1,3,6")
        if path in grid:
            raise UserError(f"-o {override}: {path} is given twice; write all its values in one -o")
        grid[path] = [parse_yaml(part, f"-o {shortened(override)}") for part in _split(text)]
    return grid


def _split(text: str) -> list[str]:
    """At commas outside of brackets and quotes; more than YAML takes in a list, such as `{split}-*.tar`."""
    parts, depth, quote = [""], 0, ""
    for sign in text:
        if quote or sign in "\"'":
            quote = "" if sign == quote else quote or sign
        else:
            depth += (sign in "[{(") - (sign in "]})")
        if sign == "," and depth == 0 and not quote:
            parts.append("")
        else:
            parts[-1] += sign
    return parts


def yaml_text(value: Any) -> str:
    return yaml.safe_dump(value, default_flow_style=True, width=10_000).strip().removesuffix("...").strip()

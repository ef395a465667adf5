"""What a sweep is: a recipe and the settings that change, expanded into points."""

import itertools
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import Field

from robustvit.core.component import settings
from robustvit.core.config import load_recipe, read_yaml, shipped_recipes, shipped_sweeps, validated
from robustvit.core.errors import UserError, nearest
from robustvit.core.files import hash8, is_file
from robustvit.evaluation.suites import suite_from


@settings
class Sweep:
    """What `robustvit sweep FILE` takes: a recipe, and the settings that change."""

    recipe: str
    name: str
    grid: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Setting to values; every combination is a run."""
    cases: tuple[Mapping[str, Any], ...] = ()
    """Or runs one by one, each a map of settings; with a grid, each case meets every combination."""
    suite: str | tuple[str, ...] = "pgd-20"
    """What judges; of several, each gets its column and line."""
    images: Annotated[int, Field(ge=1)] | None = None
    """Of the test set; None: all."""
    about: str = ""
    """The paper's table, and what it found."""

    def __post_init__(self) -> None:
        if not self.grid and not self.cases:
            raise ValueError("grid: at least one setting with its values, or cases")
        if any(not values for values in self.grid.values()):
            raise ValueError("grid: every setting needs values")
        both = sorted({name for case in self.cases for name in case if name in self.grid})
        if both:
            raise ValueError(f"{both[0]} is set in grid and in cases; leave it out of one")
        if not self.suites:
            raise ValueError("suite: at least one")
        for suite in self.suites:
            suite_from(suite)

    @property
    def suites(self) -> tuple[str, ...]:
        return (self.suite,) if isinstance(self.suite, str) else self.suite

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
        return tuple(f"{path}={yaml_text(value)}" for path, value in self.settings.items())

    @property
    def folder(self) -> str:
        text = ",".join(self.overrides) or "as-it-is"
        name = re.sub(r"[^A-Za-z0-9.=+,_-]+", "_", text)[:120]
        # what was cut or cleaned away may be all that two points differ in
        return name if name == text else f"{name}-{hash8(text)}"

    @property
    def title(self) -> str:
        return ", ".join(self.overrides) or "as it is"

    def command(self, recipe: str, root: Path) -> str:
        options = [part for override in self.overrides for part in ("-o", override)]
        return shlex.join(["robustvit", "train", recipe, *options, "--run", str(root / self.folder)])


def sweep_from(what: str, overrides: Sequence[str], suite: str | None = None, images: int | None = None) -> Sweep:
    """A sweep file, or a recipe with `setting=value,value` on the command line."""
    path = Path(what)
    if not is_file(path):
        path = shipped_sweeps().get(what, path)
    tree = read_yaml(path) if is_file(path) else None
    given: dict[str, Any] = {} if suite is None else {"suite": suite}
    given |= {} if images is None else {"images": images}
    if tree is not None and {"recipe", "grid", "cases"} & set(tree):
        grid = tree.get("grid", {})
        if overrides and isinstance(grid, Mapping):
            given["grid"] = {**grid, **_grid(overrides)}
        sibling = path.parent / str(tree.get("recipe"))
        given |= {"recipe": str(sibling)} if is_file(sibling) else {}
        from_file: Sweep = validated(Sweep, {**tree, **given}, "sweep")
        return from_file
    if not overrides:
        if what not in shipped_recipes() and not is_file(Path(what)):
            raise UserError(f"no sweep or recipe '{what}'{nearest(what, [*shipped_sweeps(), *shipped_recipes()])}")
        raise UserError(f"sweep '{what}': say what changes, such as -o objective.beta=1,3,6")
    # next to the folder where `train` puts the recipe itself
    name = f"{load_recipe(what).get('name', path.stem)}-sweep"
    tree = {"recipe": what, "name": name, "grid": _grid(overrides), **given}
    sweep: Sweep = validated(Sweep, tree, "sweep")
    return sweep


def _grid(overrides: Sequence[str]) -> dict[str, Any]:
    grid = {}
    for override in overrides:
        path, equals, text = override.partition("=")
        if not equals or not path.strip() or not text:
            raise UserError(f"-o {override}: expected path.to.setting=value,value, such as -o objective.beta=1,3,6")
        if path.strip() in grid:
            raise UserError(f"-o {override}: {path.strip()} is given twice; write all its values in one -o")
        try:
            grid[path.strip()] = [yaml.safe_load(part) for part in _split(text)]
        except (yaml.YAMLError, ValueError, RecursionError):
            raise UserError(f"-o {override}: expected values in YAML with commas between, such as 1,3,6") from None
    return grid


def _split(text: str) -> list[str]:
    """At commas outside of brackets and quotes."""
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
    text = yaml.safe_dump(value, default_flow_style=True, width=10_000).strip()
    return text.removesuffix("\n...").removesuffix("...").strip()

"""A grid of recipes: each point a run folder, trained and judged in turn; what is there isn't done again."""

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch
import yaml
from pydantic import Field

from robustvit.core.component import parse_number, settings
from robustvit.core.config import load_recipe, read_yaml, shipped_sweeps, validated
from robustvit.core.errors import UserError, first_line
from robustvit.core.files import is_file, write_json, write_text
from robustvit.core.progress import say
from robustvit.core.run import RunFolder
from robustvit.data.base import choose_images
from robustvit.evaluation import evaluate
from robustvit.evaluation.attention import scales_attention
from robustvit.evaluation.result import EvalResult
from robustvit.evaluation.suites import suite_from
from robustvit.models import load_model
from robustvit.models.create import describe
from robustvit.training.attention_event import check_attention
from robustvit.training.opening import open_recipe
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
    images: Annotated[int, Field(ge=1)] | None = None
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

    @property
    def title(self) -> str:
        return ", ".join(self.overrides) or "as it is"

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


def check_sweep(sweep: Sweep) -> None:
    """Every mistake that shows without the data, which may lie where a printed command runs."""
    for point in sweep.points():
        with _naming(point):
            recipe = recipe_from(sweep.recipe, point.overrides)
            with torch.device("meta"):
                num_classes = describe(recipe.model.build())["num_classes"]
            suite_from(sweep.suite).fitted(num_classes, recipe.threat)


def run_sweep(sweep: Sweep, root: Path, quiet: bool = False) -> list[tuple[Point, EvalResult | UserError]]:
    """Every point trained and judged, in order; one that fails is noted, and the others go on."""
    points = sweep.points()
    check_sweep(sweep)
    for point in points:
        with _naming(point):
            _open_point(sweep, point, root)
    write_text(root / "sweep.yaml", yaml.safe_dump(_plain(sweep), sort_keys=False))
    results: list[tuple[Point, EvalResult | UserError]] = []
    for number, point in enumerate(points, start=1):
        if not quiet:
            say(f"{number} of {len(points)}: {point.title}")
        try:
            results.append((point, _run_point(sweep, point, root, quiet)))
        except UserError as error:
            results.append((point, error))
            if not quiet:
                say(f"failed: {error}")
    write_json(RunFolder(root).analyses / "sweep" / "finding.json", _finding(sweep, results))
    return results


def _open_point(sweep: Sweep, point: Point, root: Path) -> None:
    """What else would show at its turn, hours later: in the data, the weights to start from, the attention."""
    recipe = recipe_from(sweep.recipe, point.overrides)
    choose_images(recipe.data.open("test"), sweep.images, seed=0)
    model = open_recipe(recipe)[2]
    if recipe.start is not None and not any((root / point.folder / "checkpoints").glob("*")):
        recipe.start(model)
    if scales_attention(suite_from(sweep.suite)):
        check_attention(model)


@contextmanager
def _naming(point: Point) -> Iterator[None]:
    try:
        yield
    except UserError as error:
        raise UserError(f"{point.title}: {error}") from None


def _run_point(sweep: Sweep, point: Point, root: Path, quiet: bool) -> EvalResult:
    run = train(sweep.recipe, run=root / point.folder, overrides=point.overrides, quiet=quiet)
    recipe = recipe_from(sweep.recipe, point.overrides)
    file = run.checkpoints / f"{recipe.checkpoints.select}.safetensors"
    return evaluate(
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


def _finding(sweep: Sweep, results: Sequence[tuple[Point, EvalResult | UserError]]) -> dict[str, Any]:
    """The sweep as a table and, along its longest axis of numbers, a plot: in the form that the report reads."""
    done = [(point, result) for point, result in results if isinstance(result, EvalResult)]
    names = [override.partition("=")[0] for override in results[0][0].overrides]
    rows = [
        [*(override.partition("=")[2] for override in point.overrides), *_cells(result)] for point, result in results
    ]
    table = {"title": sweep.about or sweep.name, "columns": [*names, "clean", "robust", "95 %"], "rows": rows}
    images = f", {done[0][1].num_images} images of {done[0][1].data}" if done else ""
    return {
        "title": f"Sweep of {sweep.recipe}",
        "caption": f"{sweep.suite}{images}.",
        "tables": [table],
        "charts": _charts(sweep, done, names),
        "pictures": [],
        "facts": {"sweep": _plain(sweep)},
    }


def _cells(result: EvalResult | UserError) -> list[str]:
    if isinstance(result, UserError):
        return [f"failed: {first_line(result)}", "", ""]
    interval = " to ".join(_percent(end) for end in result.interval)
    return [_percent(result.clean_accuracy), _percent(result.robust_accuracy), interval]


def _charts(sweep: Sweep, results: Sequence[tuple[Point, EvalResult]], names: Sequence[str]) -> list[dict[str, Any]]:
    numbers = {name: [_number(value) for value in values] for name, values in sweep.grid.items()}
    axes = [name for name, values in numbers.items() if None not in values and len(values) > 1]
    if not axes:
        return []
    axis = max(axes, key=lambda name: len(numbers[name]))
    place = names.index(axis)
    lines: dict[str, list[tuple[float, float]]] = {}
    for point, result in results:
        others = ", ".join(text for i, text in enumerate(point.overrides) if i != place) or "robust accuracy"
        value = _number(yaml.safe_load(point.overrides[place].partition("=")[2]))
        assert value is not None, "an axis of numbers"
        lines.setdefault(others, []).append((value, result.robust_accuracy))
    series = [[name, [x for x, _ in sorted(found)], [y for _, y in sorted(found)]] for name, found in lines.items()]
    return [{"title": f"Robust accuracy against {axis}", "x_title": axis, "series": series, "in_percent": True}]


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or value is None:
        return None
    try:
        return float(parse_number(value))
    except (TypeError, ValueError):
        return None


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


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

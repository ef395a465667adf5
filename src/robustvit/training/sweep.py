"""A grid of recipes: each point a run folder, trained and judged in turn; what is there isn't done again."""

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch
import yaml
from pydantic import Field

from robustvit.attacks.attention_scaling import AttentionScaling
from robustvit.core.component import parse_number, settings, to_dict
from robustvit.core.config import load_recipe, read_yaml, shipped_sweeps, validated
from robustvit.core.errors import UserError, first_line
from robustvit.core.files import hash8, is_file, write_json, write_text
from robustvit.core.progress import say
from robustvit.core.run import RunFolder
from robustvit.data.base import choose_images
from robustvit.evaluation import evaluate
from robustvit.evaluation.result import EvalResult
from robustvit.evaluation.suites import suite_from
from robustvit.models import load_model
from robustvit.models.create import describe
from robustvit.training.attention_event import check_attention
from robustvit.training.opening import open_recipe
from robustvit.training.recipe import Recipe, recipe_from
from robustvit.training.train import train


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
        return tuple(f"{path}={_yaml(value)}" for path, value in self.settings.items())

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
        import shlex

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
        beside = path.parent / str(tree.get("recipe"))
        given |= {"recipe": str(beside)} if is_file(beside) else {}
        found: Sweep = validated(Sweep, {**tree, **given}, "sweep")
        return found
    if not overrides:
        raise UserError(f"sweep '{what}': say what changes, such as -o objective.beta=1,3,6")
    # beside the folder where `train` puts the recipe itself
    name = f"{load_recipe(what).get('name', path.stem)}-sweep"
    tree = {"recipe": what, "name": name, "grid": _grid(overrides), **given}
    made: Sweep = validated(Sweep, tree, "sweep")
    return made


def check_sweep(sweep: Sweep) -> None:
    """Every mistake that shows without the data, which may lie where a printed command runs."""
    known: list[tuple[Point, Recipe]] = []
    num_classes: dict[str, int] = {}
    for point in sweep.points():
        with _naming(point):
            recipe = recipe_from(sweep.recipe, point.overrides)
            same = next((other for other, known_recipe in known if known_recipe == recipe), None)
            if same is not None:
                raise UserError(f"the same recipe as {same.title}; leave one of them out")
            known.append((point, recipe))
            model = str(recipe.model)
            if model not in num_classes:  # most sweeps change something else
                with torch.device("meta"):
                    num_classes[model] = describe(recipe.model.build())["num_classes"]
            suite_from(sweep.suite).fitted(num_classes[model], recipe.threat)


def run_sweep(sweep: Sweep, root: Path, quiet: bool = False) -> list[tuple[Point, EvalResult | UserError]]:
    """Every point trained and judged, in order; one that fails is noted, and the others go on."""
    points = sweep.points()
    check_sweep(sweep)
    for point in points:
        with _naming(point):
            _open_point(sweep, point, root)
    told = RunFolder(root).analyses / f"sweep-{hash8(str([sweep.recipe, points, sweep.suite, sweep.images]))}"
    write_text(told / "sweep.yaml", yaml.safe_dump(to_dict(sweep), sort_keys=False))
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
    write_json(told / "finding.json", _finding(sweep, results))
    return results


def _open_point(sweep: Sweep, point: Point, root: Path) -> None:
    """What else would show at its turn, hours later: in the data, the weights to start from, the attention."""
    recipe = recipe_from(sweep.recipe, point.overrides)
    choose_images(recipe.data.open("test"), sweep.images, seed=0)
    model = open_recipe(recipe)[2]
    if recipe.start is not None and not any((root / point.folder / "checkpoints").glob("*")):
        recipe.start(model)
    attacks = [stage.attack for stage in suite_from(sweep.suite).stages]
    if any(isinstance(attack, AttentionScaling) and attack.where == "attention" for attack in attacks):
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
    names = list(dict.fromkeys(name for point, _ in results for name in point.settings))
    rows = [
        [*(_yaml(point.settings[name]) if name in point.settings else "" for name in names), *_cells(result)]
        for point, result in results
    ]
    table = {"title": sweep.about or sweep.name, "columns": [*names, "clean", "robust", "95 %"], "rows": rows}
    images = f", {done[0][1].num_images} images of {done[0][1].data}" if done else ""
    return {
        "title": f"Sweep of {sweep.recipe}",
        "caption": f"{sweep.suite}{images}.",
        "tables": [table],
        "charts": _charts(done, names),
        "pictures": [],
        "facts": {"sweep": to_dict(sweep)},
    }


def _cells(result: EvalResult | UserError) -> list[str]:
    if isinstance(result, UserError):
        return [f"failed: {first_line(result)}", "", ""]
    interval = " to ".join(_percent(end) for end in result.interval)
    return [_percent(result.clean_accuracy), _percent(result.robust_accuracy), interval]


def _charts(done: Sequence[tuple[Point, EvalResult]], names: Sequence[str]) -> list[dict[str, Any]]:
    numbers = {name: [_number(point.settings.get(name)) for point, _ in done] for name in names}
    axes = [name for name, values in numbers.items() if None not in values and len(set(values)) > 1]
    if not axes:
        return []
    axis = max(axes, key=lambda name: len(set(numbers[name])))
    lines: dict[str, list[tuple[Any, float]]] = {}
    for x, (point, result) in zip(numbers[axis], done, strict=True):
        others = Point({name: value for name, value in point.settings.items() if name != axis})
        lines.setdefault(", ".join(others.overrides) or "robust accuracy", []).append((x, result.robust_accuracy))
    series = [[name, [x for x, _ in sorted(found)], [y for _, y in sorted(found)]] for name, found in lines.items()]
    return [{"title": f"Robust accuracy against {axis}", "x_title": axis, "series": series, "in_percent": True}]


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

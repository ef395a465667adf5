"""The settings that every training has, whatever its task, and how a recipe is read."""

import difflib
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Protocol, get_args

from pydantic import Field

from robustvit.core.component import OneOf, build, explaining, settings, to_dict
from robustvit.core.config import Tree, apply_overrides, check_names, load_recipe, merge, validated
from robustvit.core.errors import UserError
from robustvit.core.notebook import InNotebooks, Sheet
from robustvit.core.numbers import Count, NonNegative
from robustvit.core.recipe_info import RecipeInfo, with_info
from robustvit.core.recipe_sheet import recipe_sheet
from robustvit.core.world import World
from robustvit.training.loggers import AnyLoggers
from robustvit.training.parts import GradientSum
from robustvit.training.recorder import AnyRecorder
from robustvit.training.task import Task

DEFAULT_TASK = "classify"


class TaskComponent(Protocol):
    """A component of the kind "task": `task: NAME` in a recipe."""

    recipe_type: ClassVar[type["BaseRecipe"]]
    """The settings of the whole recipe; those of `phases` may also be given at the top level."""

    def build(self, recipe: Any, recorder: AnyRecorder, world: World) -> Task:
        """Open and check everything that the recipe names."""


AnyTask = Annotated[TaskComponent, OneOf("task")]


@settings
class Checkpoints:
    select: Literal["best", "last"] = "last"
    """What `evaluate` takes: best robust accuracy on the hold-out, or the last epoch."""
    every: Annotated[int, Field(ge=0)] = 0
    """Also keep the weights of every n-th epoch; 0: none."""
    seconds: NonNegative = 60.0
    """How much work a kill may lose."""


@settings
class BasePhase:
    """A stretch of training; progress runs from 0 to 1 in each."""

    epochs: Count
    """Passes over the training images."""
    name: str = field(default="main", kw_only=True)
    """In metrics, and in messages."""
    batch_size: Count = field(default=128, kw_only=True)
    """Images of each step."""


@settings
class BaseRecipe(InNotebooks):
    """Settings that the loop reads; a task's recipe adds its own, `phases` among them."""

    name: str
    """Of the run, whose default folder is runs/NAME."""
    phases: tuple[BasePhase, ...]
    task: AnyTask = field(kw_only=True)
    checkpoints: Checkpoints = field(default_factory=Checkpoints, kw_only=True)
    """Which weights are kept, and how often."""
    seed: int = field(default=0, kw_only=True)
    """Of weights, order, augmentation and attacks."""
    device: str = field(default="auto", kw_only=True)
    """auto: cuda where there is one, else cpu; mps where it is named."""
    gradient_sum: GradientSum = field(default="exact", kw_only=True)
    """Over processes. exact: in a fixed order, so that their number changes no bit; fast: by one all-reduce."""
    workers: Annotated[int, Field(ge=0, le=1024)] = field(default=0, kw_only=True)
    """Processes that make batches ahead; any number makes the same."""
    log_every: Count = field(default=10, kw_only=True)
    """Steps between rows of metrics.jsonl."""
    loggers: AnyLoggers = field(default=(), kw_only=True)
    """Where these rows are also sent."""
    info: RecipeInfo = field(default_factory=RecipeInfo, kw_only=True)
    """Its description; changes nothing in the training."""

    def __post_init__(self) -> None:
        if not self.name or not self.name.isprintable() or {"", ".", ".."} & set(self.name.split("/")):
            raise ValueError(f"name: the name of a folder below runs, not {self.name!r}")
        if not self.phases:
            raise ValueError("phases: at least one")
        if len({phase.name for phase in self.phases}) < len(self.phases):
            raise ValueError("phases: two have the same name")

    def resolved(self, device: str, stored: Any = None) -> "BaseRecipe":
        """With a value in place of every null that means one which depends on the device: what a run stores.

        `stored` is what it has stored before, maybe on another device.
        """
        return self

    def to_dict(self) -> Tree:
        tree: Tree = to_dict(self)
        return tree

    def sheet(self) -> Sheet:
        return recipe_sheet(self, self.name, self.info)


_FREE_TO_CHANGE = frozenset(
    f"recipe.{name}" for name in ("device", "workers", "log_every", "loggers", "info", "checkpoints.seconds")
)
"""What a resumed run may change."""


def any_recipe(recipe: BaseRecipe | str | Path | Mapping[str, Any], overrides: Sequence[str] = ()) -> BaseRecipe:
    """A recipe of any task from a name, a path or settings, with overrides such as `threat.eps=4/255`."""
    if isinstance(recipe, BaseRecipe):
        if overrides:
            raise UserError("overrides go with a recipe's name, path or settings, not with a Recipe object")
        return recipe
    tree = load_recipe(recipe) if isinstance(recipe, str | Path) else dict(recipe)
    check_names(tree, "recipe")
    tree = with_info(tree)
    keyed = [(re.split("[.=]", override)[0].strip(), override) for override in overrides]
    tree = apply_overrides(tree, [override for key, override in keyed if key == "task"])
    try:
        with explaining("recipe.task"):
            recipe_type: type[BaseRecipe] = build("task", tree.get("task", DEFAULT_TASK)).recipe_type
    except UserError as error:
        raise UserError(f"recipe.task: {str(error).removeprefix('recipe.task.')}") from None
    resolved = _with_phases(tree, recipe_type)
    for key, override in keyed:
        phases = resolved["phases"]
        of_phases = is_phase_setting(key, recipe_type) and isinstance(phases, Sequence)
        places = [f"phases.{i}." for i in _changed_phases(phases, key, override)] if of_phases else [""]
        resolved = apply_overrides(resolved, [f"{place}{override}" for place in places])
    try:
        checked: BaseRecipe = validated(recipe_type, resolved, "recipe")
    except UserError as error:
        if "phases" in tree:
            raise
        # the user wrote the settings of a single phase at the top level
        raise UserError(str(error).replace("recipe.phases.0.", "recipe.")) from None
    return checked


def _with_phases(tree: Tree, recipe_type: type[BaseRecipe]) -> Tree:
    """Phase settings at the top become the base of every phase."""
    base = {key: tree[key] for key in tree if is_phase_setting(key, recipe_type)}
    rest = {key: value for key, value in tree.items() if key not in base}
    changes = rest.pop("phases", None)
    if changes is None:
        return {**rest, "phases": [base]}
    if not isinstance(changes, Sequence) or isinstance(changes, str) or not changes:
        raise UserError("recipe.phases: a list of at least one phase")
    if not all(isinstance(change, Mapping) for change in changes):
        raise UserError("recipe.phases: each phase is a map of settings, such as {name: head, epochs: 5}")
    return {**rest, "phases": [merge(base, change) for change in changes]}


def _changed_phases(phases: Sequence[Tree], key: str, override: str) -> list[int]:
    """All; but a setting inside a component, such as objective.beta, only where the component isn't null, if any is."""
    is_inside = override.partition("=")[0].strip() != key
    having = [number for number, phase in enumerate(phases) if phase.get(key) is not None]
    return having if is_inside and having else list(range(len(phases)))


def is_phase_setting(key: str, recipe_type: type[BaseRecipe]) -> bool:
    """A setting of a phase, or an unknown one that is closest to one."""
    own = list(recipe_type.__dataclass_fields__)
    phase_type = get_args(recipe_type.__dataclass_fields__["phases"].type)[0]  # `Phase` of tuple[Phase, ...]
    of_phases = [name for name in phase_type.__dataclass_fields__ if name != "name"]
    close = difflib.get_close_matches(key, [*own, *of_phases], n=1, cutoff=0.5)
    return key not in own and any(name in of_phases for name in close)


def recipe_digest(recipe: BaseRecipe) -> str:
    """Another one for every recipe that `differences` tells from this one; a training state holds it."""
    settings = sorted(_settings(recipe.to_dict(), "recipe"))
    return hashlib.sha256(json.dumps(settings).encode()).hexdigest()


def _settings(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if path in _FREE_TO_CHANGE:
        return
    items = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else None
    if items is None:
        yield path, repr(value)
    for key, item in items or ():
        yield from _settings(item, f"{path}.{key}")


def differences(old: Any, new: Any, path: str = "recipe") -> list[str]:
    """Settings in which two resolved recipes differ, those aside that don't change what is trained."""
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        old, new = dict(enumerate(old)), dict(enumerate(new))
    if not (isinstance(old, Mapping) and isinstance(new, Mapping)):
        return [] if old == new else [f"{path}: {old} there, {new} here"]
    paths = {key: f"{path}.{key}" for key in sorted({*old, *new}) if f"{path}.{key}" not in _FREE_TO_CHANGE}
    return [line for key in paths for line in differences(old.get(key), new.get(key), paths[key])]

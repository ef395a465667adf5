"""A recipe: everything a training run depends on, checked before it starts."""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from robustvit.core.component import settings, to_dict
from robustvit.core.config import Tree, apply_overrides, check_names, load_recipe, merge, validated
from robustvit.core.errors import UserError
from robustvit.core.numbers import Count, Number
from robustvit.core.recipe_info import RecipeInfo, with_info
from robustvit.data.augment import AnyAugmentation, Mixing, Scalable
from robustvit.data.base import AnyDataset, HoldOutRule
from robustvit.data.generated import Generated
from robustvit.evaluation.suite import suite_from
from robustvit.models import ModelSettings
from robustvit.models.start import Start
from robustvit.objectives.base import AnyObjective
from robustvit.objectives.weight_perturbation import AnyStepWrapper
from robustvit.threats import LpBall
from robustvit.training.attention_event import AttentionEvent
from robustvit.training.ema import Ema
from robustvit.training.loggers import AnyLoggers
from robustvit.training.optimizer import Optimizer
from robustvit.training.schedules import AnySchedule, Cosine


@settings
class Validation:
    """How training watches itself: on images held out of the training data, never on the test set."""

    suite: str = "pgd-10"
    hold_out: Annotated[int, Field(ge=0)] = 0
    """Images held out; 0: no validation, and the last checkpoint is the result."""
    which: HoldOutRule = "random"
    """Chosen by the seed, or the first ones of the data (1,024 in Wang et al. 2023)."""
    every: Count = 1
    """Epochs between validations."""


@settings
class Checkpoints:
    select: Literal["best", "last"] = "last"
    """What `evaluate` takes: best robust accuracy on the hold-out, or the last epoch."""
    every: Annotated[int, Field(ge=0)] = 0
    """Also keep the weights of every n-th epoch; 0: none."""
    seconds: Annotated[Number, Field(ge=0)] = 60.0
    """How much work a kill may lose."""


@settings
class Phase:
    """A stretch of training with an optimizer of its own; progress runs from 0 to 1 in each."""

    epochs: Count
    objective: AnyObjective
    name: str = "main"
    trainable: tuple[str, ...] = ("*",)
    """Patterns of parameters that train, by the network's own names such as `head.*`; the others are frozen."""
    batch_size: Count = 128
    optimizer: Optimizer = field(default_factory=Optimizer)
    schedule: AnySchedule = field(default_factory=lambda: Cosine(warmup=0.05))
    eps_schedule: AnySchedule | None = None
    """Factor of the threat's eps; None: eps from the first step."""
    ema: Ema | None = None
    clip_norm: Annotated[Number, Field(gt=0)] | None = None
    """Largest norm of the gradient."""
    accumulate: Count = 1
    """Parts that a batch is searched and differentiated in, where it doesn't fit into memory at once."""
    attention_scaling: AttentionEvent | None = None
    """AAS-AT: every few epochs the factors of an attention search become the model's own."""
    around_step: AnyStepWrapper | None = None
    """Changes the weights while the gradient is taken: awp."""
    augmentation: AnyAugmentation | None = None
    mixing: Mixing | None = None
    """MixUp and CutMix; null: labels stay class indices."""
    augmentation_schedule: AnySchedule | None = None
    """Factor of the intensity of augmentation and mixing; Bai et al. 2021 let it rise for 10 epochs of 100."""
    repeats: Annotated[int, Field(ge=0)] = 0
    """Repeated augmentation: a batch as it is and so many augmented copies (A Light Recipe: 2); 0: augmented once."""
    generated: Generated | None = None

    def __post_init__(self) -> None:
        if self.accumulate > 1 and self.around_step is not None and self.around_step.whole_batch:
            raise ValueError("accumulate: around_step needs the whole batch at once; set accumulate: 1")
        if self.accumulate > self.batch_size:
            raise ValueError(f"accumulate: a batch of {self.batch_size} has no {self.accumulate} parts")
        mixes = self.mixing is not None and self.mixing.is_on
        if self.augmentation_schedule and not mixes and not isinstance(self.augmentation, Scalable):
            raise ValueError(
                "augmentation_schedule: no augmentation here has an intensity; canonical, light, mixing have"
            )
        if self.repeats and not mixes and self.augmentation is None:
            raise ValueError("repeats: without augmentation the copies are the images themselves; set augmentation")


@settings
class Recipe:
    """What `robustvit train` takes; settings of a phase stand at the top, `phases` change them one after another."""

    name: str
    model: ModelSettings
    data: AnyDataset
    threat: LpBall
    phases: tuple[Phase, ...]
    start: Start | None = None
    """Weights that the first phase begins with; None: drawn at random."""
    validation: Validation = field(default_factory=Validation)
    checkpoints: Checkpoints = field(default_factory=Checkpoints)
    seed: int = 0
    device: str = "cpu"
    workers: Annotated[int, Field(ge=0)] = 0
    """Processes that make batches ahead; any number makes the same."""
    log_every: Count = 10
    """Steps between rows of metrics.jsonl."""
    loggers: AnyLoggers = ()
    """Where these rows go besides."""
    info: RecipeInfo = field(default_factory=RecipeInfo)

    def __post_init__(self) -> None:
        if self.checkpoints.select == "best" and not self.validation.hold_out:
            raise ValueError("checkpoints.select: best needs images to select by: set validation.hold_out")
        if len({phase.name for phase in self.phases}) < len(self.phases):
            raise ValueError("phases: two have the same name")
        suite_from(self.validation.suite)

    def to_dict(self) -> Tree:
        tree = to_dict(self)
        assert isinstance(tree, dict)
        return tree


_PHASE_SETTINGS = tuple(name for name in Phase.__dataclass_fields__ if name != "name")
_FREE_TO_CHANGE = ("device", "workers", "log_every", "loggers", "info")
"""What a resumed run may change, besides how often it saves."""


def recipe_from(recipe: "Recipe | str | Path | Mapping[str, Any]", overrides: Sequence[str] = ()) -> Recipe:
    """A recipe from a name, a path or settings, with overrides such as `threat.eps=4/255`."""
    if isinstance(recipe, Recipe):
        if overrides:
            raise UserError("overrides go with a recipe's name, path or settings, not with a Recipe object")
        return recipe
    tree = load_recipe(recipe) if isinstance(recipe, str | Path) else dict(recipe)
    check_names(tree, "recipe")
    tree = with_info(tree)
    resolved = with_phases(tree)
    for override in overrides:
        of_a_phase = _belongs_to_phases(override.partition("=")[0].partition(".")[0].strip())
        places = [f"phases.{i}." for i in range(len(resolved["phases"]))] if of_a_phase else [""]
        resolved = apply_overrides(resolved, [f"{place}{override}" for place in places])
    try:
        return validated(Recipe, resolved, "recipe")
    except UserError as error:
        if "phases" in tree:
            raise
        # the settings of an only phase stand at the top, where the user wrote them
        raise UserError(str(error).replace("recipe.phases.0.", "recipe.")) from None


def with_phases(tree: Tree) -> Tree:
    """Phase settings at the top become the base of every phase."""
    base = {key: tree[key] for key in tree if _belongs_to_phases(key)}
    rest = {key: value for key, value in tree.items() if key not in base}
    changes = rest.pop("phases", None)
    if changes is None:
        return {**rest, "phases": [base]}
    if not isinstance(changes, Sequence) or isinstance(changes, str) or not changes:
        raise UserError("recipe.phases: a list of at least one phase")
    if not all(isinstance(change, Mapping) for change in changes):
        raise UserError("recipe.phases: each phase is a map of settings, such as {name: head, epochs: 5}")
    return {**rest, "phases": [merge(base, change) for change in changes]}


def _belongs_to_phases(key: str) -> bool:
    """A setting of a phase, or an unknown one that looks most like one."""
    own = list(Recipe.__dataclass_fields__)
    close = difflib.get_close_matches(key, [*own, *_PHASE_SETTINGS], n=1, cutoff=0.5)
    return key not in own and (key in _PHASE_SETTINGS or (bool(close) and close[0] in _PHASE_SETTINGS))


def differences(old: Any, new: Any, path: str = "recipe") -> list[str]:
    """Settings in which two resolved recipes differ, those aside that don't change what is trained."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        found = []
        for key in sorted({*old, *new}):
            if (path == "recipe" and key in _FREE_TO_CHANGE) or (path == "recipe.checkpoints" and key == "seconds"):
                continue
            found += differences(old.get(key), new.get(key), f"{path}.{key}")
        return found
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return [
            line for i, (a, b) in enumerate(zip(old, new, strict=True)) for line in differences(a, b, f"{path}.{i}")
        ]
    return [] if old == new else [f"{path}: {old} there, {new} here"]

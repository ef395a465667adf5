"""The recipe of a classifier: everything its training depends on, checked before it starts."""

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Annotated, Any, Protocol

import torch
from pydantic import Field
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from robustvit.core.component import OneOf, build, settings, to_dict
from robustvit.core.errors import UserError
from robustvit.core.journal import Row
from robustvit.core.numbers import Count, Positive
from robustvit.data.augment import AnyAugmentation, Mixing, Scalable
from robustvit.data.base import AnyDataset, HoldOutRule, Images
from robustvit.data.generated import Generated
from robustvit.evaluation.evaluate import evaluator_from, own_data
from robustvit.models import ModelSettings
from robustvit.models.precision import Precision
from robustvit.models.start import Start
from robustvit.objectives.base import AnyObjective
from robustvit.objectives.weight_perturbation import AnyStepWrapper
from robustvit.threats import LpBall
from robustvit.training.base_recipe import DEFAULT_TASK, AnyTask, BasePhase, BaseRecipe, any_recipe
from robustvit.training.optimizer import Ema, Optimizer
from robustvit.training.schedules import AnySchedule, Cosine

_PART = 64
"""Images whose activations stay in a CPU's cache: a batch of 256 at once takes 1.25 times as long."""


class Event(Protocol):
    """Called before the first step of an epoch where it is due."""

    def check(self, model: nn.Module) -> None:
        """Raise a UserError before the training where the model doesn't fit."""

    def is_due(self, epoch: int) -> bool:
        """Whether it happens after so many whole epochs."""

    def __call__(self, model: nn.Module, images: Images, device: str, seed: int) -> Row:
        """Change the model; the row joins the metrics, with numbers to plot below `values`."""


AnyEvent = Annotated[Event, OneOf("event")]


@settings
class Validation:
    """How training watches itself: on images held out of the training data, never on the test set."""

    suite: str | dict[str, Any] = "pgd-10"
    """A suite of attacks or an evaluator, by name or as settings."""
    hold_out: Annotated[int, Field(ge=0)] = 0
    """Images held out; 0: no validation, and the last checkpoint is the result."""
    which: HoldOutRule = "random"
    """Chosen by the seed, or the first ones of the data (1,024 in Wang et al. 2023)."""
    every: Count = 1
    """Epochs between validations."""


@settings
class Turn:
    """A kind of step: what it minimizes, through which head, by moving which parameters."""

    objective: AnyObjective
    """What is minimized, and by which attack."""
    trainable: tuple[str, ...] = ("*",)
    """Patterns of parameters that train, by the network's own names such as `head.*`; the others are frozen."""
    head: str | None = None
    """Of a model with several, the one that is attacked and trained; null: its output."""


@settings
class Phase(BasePhase):
    """A part of the training with its own optimizer and schedules; progress runs from 0 to 1 in each."""

    objective: AnyObjective | None = None
    """What is minimized, and by which attack; null: `alternate` says it."""
    trainable: tuple[str, ...] = ("*",)
    """Patterns of parameters that train, by the network's own names such as `head.*`; the others are frozen."""
    head: str | None = None
    """Of a model with several, the one that is attacked and trained; null: its output."""
    alternate: Annotated[tuple[Turn, ...], Field(min_length=1)] | None = None
    """Steps that take turns, batch by batch, each with an objective, trainable parameters and a head of its own."""
    optimizer: Optimizer = field(default_factory=Optimizer)
    """With its rate."""
    schedule: AnySchedule = field(default_factory=lambda: Cosine(warmup=0.05))
    """Factor of the rate over the phase."""
    eps_schedule: AnySchedule | None = None
    """Factor of the threat's eps; None: eps from the first step."""
    ema: Ema | None = None
    """A moving average of the weights, which is then what is validated and saved; null: none."""
    clip_norm: Positive | None = None
    """Largest norm of the gradient."""
    accumulate: Count | None = None
    """Parts that a batch is searched and differentiated in; 1, 2, 4 ... processes that each get a power of two of them
    end with the same bits. null: on a CPU, where small ones are faster, as many as have at most 64 images, 128 in bf16,
    but one where the model has batch norms or there is an `around_step`."""
    events: tuple[AnyEvent, ...] = ()
    """What happens to the model between epochs."""
    around_step: AnyStepWrapper | None = None
    """Changes the weights while the gradient is taken: awp."""
    augmentation: AnyAugmentation | None = None
    """Random changes of the training images; null: none."""
    mixing: Mixing | None = None
    """MixUp and CutMix; null: labels stay class indices."""
    augmentation_schedule: AnySchedule | None = None
    """Factor of the intensity of augmentation and mixing; Bai et al. 2021 let it rise for 10 epochs of 100."""
    repeats: Annotated[int, Field(ge=0)] = 0
    """Repeated augmentation: a batch as it is and so many augmented copies (A Light Recipe: 2); 0: augmented once."""
    generated: Generated | None = None
    """Images that are mixed into the batches; null: none."""

    def __post_init__(self) -> None:
        if self.objective is None and self.alternate is None:
            raise ValueError("objective: missing; what is minimized, such as trades, or alternate: a list of turns")
        for name in ("objective", "trainable", "head") if self.alternate is not None else ():
            if getattr(self, name) != Phase.__dataclass_fields__[name].default:
                raise ValueError(f"{name}: every turn of alternate has its own; remove one of them")
        if self.parts > self.batch_size:
            raise ValueError(f"accumulate: a batch of {self.batch_size} has no {self.accumulate} parts")
        mixes = self.mixing is not None and self.mixing.is_on
        if self.augmentation_schedule and not mixes and not isinstance(self.augmentation, Scalable):
            advice = "canonical, light, mixing have"
            raise ValueError(f"augmentation_schedule: no augmentation here has an intensity; {advice}")
        if self.repeats and not mixes and self.augmentation is None:
            raise ValueError("repeats: without augmentation the copies are the images themselves; set augmentation")

    @property
    def turns(self) -> tuple[Turn, ...]:
        """The kinds of steps: step k is of kind k modulo their number."""
        if self.alternate is not None:
            return self.alternate
        assert self.objective is not None, "checked above"
        return (Turn(self.objective, self.trainable, self.head),)

    @property
    def all_trainable(self) -> tuple[str, ...]:
        """Patterns of parameters that train in some turn."""
        return tuple(dict.fromkeys(pattern for turn in self.turns for pattern in turn.trainable))

    @property
    def parts(self) -> int:
        """Of a batch."""
        return self.accumulate or 1


@settings
class Recipe(BaseRecipe):
    """Everything that training a classifier depends on; settings of phases may be given at the top level."""

    phases: tuple[Phase, ...]
    """Parts of the training, one after the other; the settings of a single one may be given at the top level."""
    model: ModelSettings
    """The network, by its name in timm, with settings."""
    data: AnyDataset
    """The images: a name, or a map with settings."""
    threat: LpBall
    """Which perturbations the attacks of training and validation may make."""
    train_images: Count | None = field(default=None, kw_only=True)
    """Train on so many of the images, drawn by the seed; null: on all that are not held out."""
    task: AnyTask = field(default_factory=lambda: build("task", DEFAULT_TASK), kw_only=True)
    """What is trained."""
    precision: Precision = "float32"
    """Of search and loss. bf16: matrix products in bfloat16; stem, softmax, norms, logits, losses, weights and
    validation in float32. tf32: products rounded to TF32, refused where there is none. A slower one is reported."""
    activation_checkpointing: bool = False
    """Blocks keep their inputs alone and compute the rest again for the gradient: a fraction of the memory, the same
    gradients, about a third more time."""
    compile: bool = False
    """The network by torch.compile, which takes minutes at first; not with what probes attention."""
    shard: bool = False
    """Weights, gradients and optimizer state are spread over the processes (FSDP2); one whole copy of the network
    must fit into every device. Weights differ in the last bits from those of other numbers of processes."""
    start: Start | None = None
    """Weights that the first phase begins with; None: drawn at random."""
    validation: Validation = field(default_factory=Validation)
    """How robust accuracy is measured during training."""

    def __post_init__(self) -> None:
        BaseRecipe.__post_init__(self)
        if self.checkpoints.select == "best" and not self.validation.hold_out:
            raise ValueError("checkpoints.select: best needs images to select by: set validation.hold_out")
        try:
            if own_data(evaluator_from(self.validation.suite, self.threat)) is not None:
                raise UserError("it has images of its own, where the held-out ones are to be validated on")
        except UserError as error:
            raise UserError(f"validation.suite: {error}") from None

    def resolved(self, device: str, stored: Any = None) -> "Recipe":
        """With the number of parts that batches are computed in."""
        if all(phase.accumulate for phase in self.phases):
            return self
        with torch.device("meta"):
            has_batch_norms = any(isinstance(module, _BatchNorm) for module in self.model.build().modules())
        is_whole = has_batch_norms or torch.device(device).type != "cpu"
        most = 2 * _PART if self.precision == "bf16" else _PART  # half the memory an image

        def parts(phase: Phase) -> int:
            return (
                1 if is_whole or phase.around_step is not None else -(-phase.batch_size * (1 + phase.repeats) // most)
            )

        known = _stored_parts(stored)
        return replace(
            self,
            phases=tuple(
                replace(phase, accumulate=phase.accumulate or known.get(phase.name) or parts(phase))
                for phase in self.phases
            ),
        )


def _stored_parts(stored: Any) -> dict[str, int]:
    """By phase, of a recipe as a run stores it; whoever compares the recipes reports what else is wrong with it."""
    phases = stored.get("phases") if isinstance(stored, Mapping) else None
    known = [phase for phase in phases if isinstance(phase, Mapping)] if isinstance(phases, list) else []
    parts = {str(phase.get("name")): phase.get("accumulate") for phase in known}
    return {name: count for name, count in parts.items() if isinstance(count, int) and count > 0}


def recipe_from(recipe: Recipe | str | Path | Mapping[str, Any], overrides: Sequence[str] = ()) -> Recipe:
    """A classifier's recipe from a name, a path or settings, with overrides such as `threat.eps=4/255`."""
    checked = any_recipe(recipe, overrides)
    if not isinstance(checked, Recipe):
        task = to_dict(checked.task)["name"]
        raise UserError(f"recipe.task: a classifier's recipe is needed here, '{checked.name}' has the task '{task}'")
    return checked

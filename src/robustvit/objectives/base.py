"""What a training objective is: an inner search and an outer loss, apart so that each can be wrapped."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Annotated, Any, Literal, Protocol

from pydantic import Field
from torch import Tensor, nn

from robustvit.core.component import OneOf, is_component
from robustvit.core.streams import SampleStreams
from robustvit.threats import LpBall

AttackMode = Literal["eval", "train"]
"""The model's mode while it is attacked: eval meets no dropout; train does, and the batch's own statistics, but keeps
none of them."""

Smoothing = Annotated[float, Field(ge=0, lt=1)]


@dataclass(frozen=True)
class Losses:
    """`total` (B,), whose mean training minimizes; `parts`, its terms; `logits` on the images it was trained on."""

    total: Tensor
    logits: Tensor
    parts: Mapping[str, Tensor] = field(default_factory=dict)
    clean_logits: Tensor | None = None
    """On the clean images, where the loss needs them, too."""

    def detached(self) -> "Losses":
        """The same values without their graph."""
        clean = None if self.clean_logits is None else self.clean_logits.detach()
        parts = {name: part.detach() for name, part in self.parts.items()}
        return Losses(self.total.detach(), self.logits.detach(), parts, clean)


@dataclass(frozen=True)
class Perturbed:
    """The images of a batch after the inner maximization."""

    x_adv: Tensor
    attacked: bool = True
    """Whether there was a search; False: they are clean."""
    terms: tuple["Perturbed", ...] = ()
    """Of a weighted sum, whose terms have images of their own."""


class Objective(Protocol):
    """Turns attacked batches into a training loss.

    Optional methods: `at(progress) -> Objective`, if it changes during training, and `check(model)`, which raises a
    UserError before training if the model doesn't fit. An objective may declare `attacked`: whether it trains on
    attacked images. Without a declaration it does if a setting holds an attack, or another objective that does.
    """

    def perturb(self, model: nn.Module, x: Tensor, y: Tensor, threat: LpBall, *, random: SampleStreams) -> Perturbed:
        """The inner maximization, on the bare module."""

    def loss(self, model: nn.Module, x: Tensor, perturbed: Perturbed, y: Tensor) -> Losses:
        """The outer minimization, through whatever wraps the module."""


AnyObjective = Annotated[Objective, OneOf("objective")]


def at(objective: Objective, progress: float) -> Objective:
    """The objective as it is at this moment of the training."""
    changed: Objective = objective.at(progress) if hasattr(objective, "at") else objective
    return changed


def check(objective: Objective, model: nn.Module) -> None:
    """Before the training: whether the objective can work with the model."""
    if hasattr(objective, "check"):
        objective.check(model)


def trains_on_attacked(objective: Objective) -> bool:
    """Whether an objective trains on attacked images: as it declares, or by the attacks and objectives inside of it."""
    own = getattr(objective, "attacked", None)
    if own is not None:
        return bool(own)
    parts = [part for name in _settings(objective) for part in _components(getattr(objective, name))]
    return any(is_component(part, "attack") or trains_on_attacked(part) for part in parts)


def _components(value: Any) -> Iterator[Any]:
    """Attacks and objectives in a setting, also in lists and in settings of its own, such as the terms of a sum."""
    if is_component(value, "attack") or is_component(value, "objective"):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _components(item)
    else:
        for name in _settings(value):
            yield from _components(getattr(value, name))


def _settings(value: object) -> list[str]:
    return [one.name for one in fields(value)] if is_dataclass(value) and not isinstance(value, type) else []

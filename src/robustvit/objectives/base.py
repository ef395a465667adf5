"""What a training objective is: an inner search and an outer loss, apart so that each can be wrapped."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal, Protocol

from pydantic import Field
from torch import Tensor, nn

from robustvit.core.component import OneOf
from robustvit.core.streams import SampleStreams
from robustvit.threats import LpBall

AttackMode = Literal["eval", "train"]
"""The model's mode while it is attacked: eval meets no dropout; train does, and the batch's own statistics, but keeps
none of them."""

Smoothing = Annotated[float, Field(ge=0, lt=1)]


@dataclass(frozen=True)
class Losses:
    """`total` (B,), whose mean training minimises; `parts`, its terms; `logits` on the images it was trained on."""

    total: Tensor
    logits: Tensor
    parts: Mapping[str, Tensor] = field(default_factory=dict)


class Objective(Protocol):
    """One that changes during training also has `at(progress) -> Objective`: what it is at that moment.

    One that doesn't fit every model has `check(model)`, which raises a UserError before anything is trained.
    """

    def perturb(self, model: nn.Module, x: Tensor, y: Tensor, threat: LpBall, *, random: SampleStreams) -> Tensor:
        """The inner maximisation, on the bare module: x itself where nothing is attacked."""
        ...

    def loss(self, model: nn.Module, x: Tensor, x_adv: Tensor, y: Tensor) -> Losses:
        """The outer minimisation, through whatever wraps the module."""
        ...


AnyObjective = Annotated[Objective, OneOf("objective")]


def at(objective: Objective, progress: float) -> Objective:
    """The objective as it is at this moment of the training."""
    changed: Objective = objective.at(progress) if hasattr(objective, "at") else objective
    return changed


def check(objective: Objective, model: nn.Module) -> None:
    """Before the training: whether the objective can work with the model."""
    if hasattr(objective, "check"):
        objective.check(model)

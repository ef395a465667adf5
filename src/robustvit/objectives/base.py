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
"""The model's mode while it is attacked: in eval mode, the search moves no batch statistics and meets no dropout."""

Smoothing = Annotated[float, Field(ge=0, lt=1)]


@dataclass(frozen=True)
class Losses:
    """`total` (B,), whose mean training minimises; `parts`, its terms; `logits` on the images it was trained on."""

    total: Tensor
    logits: Tensor
    parts: Mapping[str, Tensor] = field(default_factory=dict)


class Objective(Protocol):
    def perturb(self, model: nn.Module, x: Tensor, y: Tensor, threat: LpBall, *, random: SampleStreams) -> Tensor:
        """The inner maximisation, on the bare module."""
        ...

    def loss(self, model: nn.Module, x: Tensor, x_adv: Tensor, y: Tensor) -> Losses:
        """The outer minimisation, through whatever wraps the module."""
        ...


AnyObjective = Annotated[Objective, OneOf("objective")]

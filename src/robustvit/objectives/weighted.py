"""Several objectives at once, each with its own search."""

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from robustvit.core.component import component, settings
from robustvit.core.numbers import Number
from robustvit.core.streams import SampleStreams
from robustvit.objectives.base import AnyObjective, Losses, at, check
from robustvit.objectives.standard import Standard
from robustvit.threats import LpBall


@settings
class Term:
    objective: AnyObjective
    weight: Annotated[Number, Field(ge=0)] = 1.0


@component("objective", "weighted_sum")
class WeightedSum:
    """The sum of its terms, such as TORA-ViT's lambda L_ROB + (1 - lambda) L_ACC."""

    terms: Annotated[tuple[Term, ...], Field(min_length=1)] = (Term(Standard()),)

    def at(self, progress: float) -> "WeightedSum":
        return WeightedSum(tuple(Term(at(term.objective, progress), term.weight) for term in self.terms))

    def check(self, model: nn.Module) -> None:
        for term in self.terms:
            check(term.objective, model)

    def perturb(self, model: nn.Module, x: Tensor, y: Tensor, threat: LpBall, *, random: SampleStreams) -> Tensor:
        """One batch for each term, stacked (terms, B, 3, H, W); all draw the same random numbers."""
        found = [term.objective.perturb(model, x, y, threat, random=random) for term in self.terms]
        return x if all(x_adv is x for x_adv in found) else torch.stack(found)

    def loss(self, model: nn.Module, x: Tensor, x_adv: Tensor, y: Tensor) -> Losses:
        """Its logits are those of the last term that was attacked."""
        images = [x] * len(self.terms) if x_adv is x else list(x_adv.unbind())
        losses = [term.objective.loss(model, x, own, y) for term, own in zip(self.terms, images, strict=True)]
        attacked = [i for i, own in enumerate(images) if not torch.equal(own, x)]
        total = torch.stack([term.weight * part.total for term, part in zip(self.terms, losses, strict=True)]).sum(0)
        parts = {f"{i}_{term.objective.name}": losses[i].total for i, term in enumerate(self.terms)}  # type: ignore[attr-defined]
        return Losses(total, losses[attacked[-1] if attacked else 0].logits, parts)

"""Several objectives at once, each with its own search."""

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from robustvit.core.component import component, settings
from robustvit.core.numbers import NonNegative, UnitInterval
from robustvit.core.streams import SampleStreams
from robustvit.objectives.adversarial import Adversarial, Standard
from robustvit.objectives.base import AnyObjective, Losses, Perturbed, at, check, trains_on_attacked
from robustvit.threats import LpBall


@settings
class Term:
    objective: AnyObjective
    weight: NonNegative = 1.0


@component("objective", "weighted_sum")
class WeightedSum:
    """The sum of its terms, each with a weight."""

    terms: Annotated[tuple[Term, ...], Field(min_length=1)] = (Term(Standard()),)
    """Objectives with their weights."""

    @property
    def attacked(self) -> bool:
        """A term without weight trains nothing."""
        return any(term.weight > 0 and trains_on_attacked(term.objective) for term in self.terms)

    def at(self, progress: float) -> "WeightedSum":
        return WeightedSum(tuple(Term(at(term.objective, progress), term.weight) for term in self.terms))

    def check(self, model: nn.Module) -> None:
        for term in self.terms:
            check(term.objective, model)

    def perturb(self, model: nn.Module, x: Tensor, y: Tensor, threat: LpBall, *, random: SampleStreams) -> Perturbed:
        """One batch for each term; all draw the same random numbers."""
        terms = tuple(term.objective.perturb(model, x, y, threat, random=random) for term in self.terms)
        shown = _shown(terms)
        return Perturbed(terms[shown].x_adv, terms[shown].attacked, terms)

    def loss(self, model: nn.Module, x: Tensor, perturbed: Perturbed, y: Tensor) -> Losses:
        """Its logits are those of the last term that was attacked."""
        terms = zip(self.terms, perturbed.terms, strict=True)
        losses = [term.objective.loss(model, x, own, y) for term, own in terms]
        total = torch.stack([term.weight * part.total for term, part in zip(self.terms, losses, strict=True)]).sum(0)
        parts = {f"{i}_{term.objective.name}": losses[i].total for i, term in enumerate(self.terms)}  # type: ignore[attr-defined]
        clean = next((part.clean_logits for part in losses if part.clean_logits is not None), None)
        return Losses(total, losses[_shown(perturbed.terms)].logits, parts, clean)


def _shown(terms: tuple[Perturbed, ...]) -> int:
    """The last term that was attacked, or the first."""
    return max((i for i, term in enumerate(terms) if term.attacked), default=0)


@component("objective", "trade_off")
class TradeOff:
    """lambda L_ROB + (1 - lambda) L_ACC, the second phase of TORA-ViT (Li and Xu); both terms see every batch."""

    robust: AnyObjective = Adversarial()
    """L_ROB, on attacked images."""
    accurate: AnyObjective = Standard()
    """L_ACC, on clean images."""
    robust_weight: UnitInterval = 0.5
    """lambda."""

    @property
    def attacked(self) -> bool:
        return self.sum.attacked

    @property
    def sum(self) -> WeightedSum:
        """Of the terms that count."""
        terms = Term(self.robust, self.robust_weight), Term(self.accurate, 1 - self.robust_weight)
        return WeightedSum(tuple(term for term in terms if term.weight > 0))

    def at(self, progress: float) -> "TradeOff":
        return TradeOff(at(self.robust, progress), at(self.accurate, progress), self.robust_weight)

    def check(self, model: nn.Module) -> None:
        self.sum.check(model)

    def perturb(self, model: nn.Module, x: Tensor, y: Tensor, threat: LpBall, *, random: SampleStreams) -> Perturbed:
        return self.sum.perturb(model, x, y, threat, random=random)

    def loss(self, model: nn.Module, x: Tensor, perturbed: Perturbed, y: Tensor) -> Losses:
        return self.sum.loss(model, x, perturbed, y)

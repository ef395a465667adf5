"""What a suite is made of: stages in order, each an attack that meets what those before it left standing."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from robustvit.attacks import Attack, check_norms, mapped
from robustvit.core.component import to_dict
from robustvit.evaluation.ledger import Order
from robustvit.threats import LpBall


@dataclass(frozen=True)
class Stage:
    """One attack of a suite: it meets only images that every stage before has left standing."""

    name: str
    attack: Attack
    target_rank: int | None = None
    """Towards the class of this rank (1 is the predicted one); any wrong class counts as fooled."""
    target_order: Order = "ranked"
    """By the clean logits, or by the distance of the boundary if the model were linear."""

    def to_dict(self) -> dict[str, Any]:
        order = {} if self.target_order == "ranked" else {"target_order": self.target_order}
        return {"name": self.name, "attack": to_dict(self.attack), "target_rank": self.target_rank, **order}


@dataclass(frozen=True)
class Suite:
    """Attacks in order; robust accuracy is the worst case over them."""

    name: str
    stages: tuple[Stage, ...]
    sampled: tuple[Stage, ...] = ()
    """Meet a random sample of what the stages leave standing; they bound the robust accuracy, and don't change it."""
    precision: float | None = None
    """How finely, as a share of all images; None: as finely as so many images can tell."""
    protocol: Literal["transfer", "paper"] = "transfer"
    """Adversarial images are judged on the model as it is; or on that with scaled attention, as its paper does."""
    beside: tuple[Stage, ...] = ()
    """The stages once more as a control, with chance in place of a search; what both have in common is done once."""
    in_l1: "Suite | None" = None
    """What the suite is in L1, where that is something else."""

    def to_dict(self) -> dict[str, Any]:
        plain = {"name": self.name, "stages": [stage.to_dict() for stage in self.stages]}
        if self.protocol != "transfer":
            plain["protocol"] = self.protocol
        if not self.sampled:
            return plain
        return {**plain, "sampled": [stage.to_dict() for stage in self.sampled], "precision": self.precision}

    def fitted(self, num_classes: int, threat: LpBall) -> tuple["Suite", list[str]]:
        """The suite for so many classes, and what had to give way: ranks that don't exist, losses that need more."""
        if threat.norm == "1" and self.in_l1 is not None:
            return self.in_l1.fitted(num_classes, threat)
        for stage in (*self.stages, *self.sampled):
            check_norms(stage.attack, threat)
        stages, notes = _fitted(self.stages, num_classes)
        sampled, further = _fitted(self.sampled, num_classes)
        return replace(self, stages=stages, sampled=sampled), list(dict.fromkeys([*notes, *further]))


def _fitted(stages: Sequence[Stage], num_classes: int) -> tuple[tuple[Stage, ...], list[str]]:
    kept = [stage for stage in stages if (stage.target_rank or 0) <= num_classes]
    notes = (
        []
        if len(kept) == len(stages)
        else [f"with {num_classes} classes, targeted stages have {num_classes - 1} targets"]
    )
    for number, stage in enumerate(kept):
        if num_classes < (3 if stage.target_rank is None else 4):
            plain = with_margin_loss(stage.attack)
            if plain != stage.attack:
                kept[number] = replace(stage, attack=plain)
                notes.append(
                    f"{stage.name}: the margin loss instead of DLR, which needs more than {num_classes} classes"
                )
    return tuple(kept), notes


def with_margin_loss(attack: Attack) -> Attack:
    """The same attack on the margin where it used DLR."""

    def change(one: Attack) -> Attack:
        return replace(one, loss="cw") if getattr(one, "loss", None) == "dlr" else one  # type: ignore[type-var]

    return mapped(attack, change)

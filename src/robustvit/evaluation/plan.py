"""What a suite comes to for a norm and a number of classes: stages in order, each for what those before it left."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from robustvit.attacks import Attack, check_norms, innermost, mapped
from robustvit.core.component import to_dict
from robustvit.core.result import ResultWarning
from robustvit.evaluation.ledger import Order
from robustvit.threats import LpBall

FEW_CLASSES = "few-classes"
_ADVICE = "compare only with results on as few classes"


@dataclass(frozen=True)
class Stage:
    """One attack of a suite: it meets only images that every stage before has left robust."""

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
class Plan:
    """Attacks in order; robust accuracy is the worst case over them."""

    name: str
    stages: tuple[Stage, ...]
    sampled: tuple[Stage, ...] = ()
    """Meet a random sample of what the stages leave; they bound what they would take of all of it."""
    precision: float | None = None
    """How finely, as a fraction of all images; None: as finely as so many images can tell."""

    @property
    def title(self) -> str:
        return self.name

    def plan(self, threat: LpBall) -> "Plan":
        """A plan is a suite that is the same for every threat."""
        return self

    @property
    def every(self) -> tuple[Stage, ...]:
        return (*self.stages, *self.sampled)

    def to_dict(self) -> dict[str, Any]:
        plain = {"name": self.name, "stages": [stage.to_dict() for stage in self.stages]}
        if not self.sampled:
            return plain
        return {**plain, "sampled": [stage.to_dict() for stage in self.sampled], "precision": self.precision}

    def fitted(self, num_classes: int, threat: LpBall) -> tuple["Plan", tuple[ResultWarning, ...]]:
        """The plan for so many classes, and what had to change: ranks that don't exist, losses that need more."""
        for stage in self.every:
            check_norms(stage.attack, threat)
        stages, warnings = _fitted(self.stages, num_classes)
        sampled, further = _fitted(self.sampled, num_classes)
        return replace(self, stages=stages, sampled=sampled), tuple(dict.fromkeys([*warnings, *further]))

    def uses(self) -> dict[str, tuple[str, int]]:
        """What names a stage's random numbers: its innermost attack and how many like it came before.

        Not the stage's name: with restarts, in another suite, or in a sample, an attack draws what it draws alone.
        """
        uses: dict[str, tuple[str, int]] = {}
        for part in (self.stages, self.sampled):
            kinds: list[str] = []
            for stage in part:
                own = getattr(stage.attack, "draws_as", None)
                kind = str(own or getattr(innermost(stage.attack), "name", ""))
                uses[stage.name] = (kind, kinds.count(kind))
                kinds.append(kind)
        return uses


def targeted(name: str, attack: Attack, targets: int = 9) -> tuple[Stage, ...]:
    """One stage for each of so many classes after the predicted one."""
    return tuple(Stage(f"{name}/{rank - 1}", attack, rank) for rank in range(2, targets + 2))


def _fitted(stages: Sequence[Stage], num_classes: int) -> tuple[tuple[Stage, ...], list[ResultWarning]]:
    kept = [stage for stage in stages if (stage.target_rank or 0) <= num_classes]
    warnings = []
    if len(kept) < len(stages):
        observation = f"with {num_classes} classes, targeted stages have {num_classes - 1} targets"
        warnings.append(ResultWarning(FEW_CLASSES, observation, _ADVICE))
    for number, stage in enumerate(kept):
        if num_classes < (3 if stage.target_rank is None else 4):
            plain = mapped(stage.attack, _with_margin_loss)
            if plain != stage.attack:
                kept[number] = replace(stage, attack=plain)
                observation = f"the margin loss instead of DLR, which needs more than {num_classes} classes"
                warnings.append(ResultWarning(FEW_CLASSES, f"{stage.name}: {observation}", _ADVICE))
    return tuple(kept), warnings


def _with_margin_loss(attack: Attack) -> Attack:
    return replace(attack, loss="cw") if getattr(attack, "loss", None) == "dlr" else attack  # type: ignore[type-var]

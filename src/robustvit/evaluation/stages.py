"""What a suite is made of: stages in order, each an attack that meets what those before it left standing."""

from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from robustvit.attacks import Attack, Ensemble, FromSurrogate, Restarts
from robustvit.core.component import to_dict
from robustvit.core.errors import UserError
from robustvit.threats import LpBall


@dataclass(frozen=True)
class Stage:
    """One attack of a suite: it meets only images that every stage before has left standing."""

    name: str
    attack: Attack
    target_rank: int | None = None
    """Towards the class of this rank by the clean logits (1 is the predicted one); any wrong class counts as fooled."""

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "attack": to_dict(self.attack), "target_rank": self.target_rank}


@dataclass(frozen=True)
class Suite:
    """Attacks in order; robust accuracy is the worst case over them."""

    name: str
    stages: tuple[Stage, ...]

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "stages": [stage.to_dict() for stage in self.stages]}

    def fitted(self, num_classes: int, threat: LpBall) -> tuple["Suite", list[str]]:
        """The suite for so many classes, and what had to give way: ranks that don't exist, losses that need more."""
        for stage in self.stages:
            _check_norm(stage.name, stage.attack, threat)
        stages = [stage for stage in self.stages if (stage.target_rank or 0) <= num_classes]
        notes = (
            []
            if len(stages) == len(self.stages)
            else [f"with {num_classes} classes, targeted stages have {num_classes - 1} targets"]
        )
        for number, stage in enumerate(stages):
            if num_classes < (3 if stage.target_rank is None else 4):
                plain = with_margin_loss(stage.attack)
                if plain != stage.attack:
                    stages[number] = replace(stage, attack=plain)
                    notes.append(
                        f"{stage.name}: the margin loss instead of DLR, which needs more than {num_classes} classes"
                    )
        return Suite(self.name, tuple(stages)), notes


def _check_norm(stage: str, attack: Attack, threat: LpBall) -> None:
    """Told before the first stage begins, not when its turn comes."""
    norms = getattr(attack, "norms", (threat.norm,))
    if threat.norm not in norms:
        raise UserError(f"{stage}: searches in L{' and L'.join(norms)} alone, not in {threat}")
    for inner in (getattr(attack, "inner", None), *getattr(attack, "attacks", ())):
        if inner is not None:
            _check_norm(stage, inner, threat)


def with_margin_loss(attack: Attack) -> Attack:
    """The same attack on the margin where it used DLR."""
    if isinstance(attack, Restarts | FromSurrogate):
        return replace(attack, inner=with_margin_loss(attack.inner))
    if isinstance(attack, Ensemble):
        return replace(attack, attacks=tuple(with_margin_loss(member) for member in attack.attacks))
    return replace(attack, loss="cw") if getattr(attack, "loss", None) == "dlr" else attack  # type: ignore[type-var]


def label(attack: Attack) -> str:
    """A short name that carries every setting that isn't the default."""
    if isinstance(attack, Restarts):
        return f"{label(attack.inner)} x{attack.times}"
    if isinstance(attack, Ensemble):
        return " or ".join(label(member) for member in attack.attacks)
    if isinstance(attack, FromSurrogate):
        return f"{label(attack.inner)} from {attack.surrogate}"
    settings = to_dict(attack)
    name = settings.pop("name")
    try:
        usual = to_dict(type(attack)())
    except ValidationError:  # a foreign attack that has settings without a default
        usual = {}
    changed = ",".join(f"{key}={value}" for key, value in settings.items() if usual.get(key) != value)
    return f"{name}:{changed}" if changed else name

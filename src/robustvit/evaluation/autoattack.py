"""What AutoAttack is made of, and the suite `fast`, whose sample it judges."""

from dataclasses import replace
from typing import Any

from robustvit.attacks import APGD, FAB, Attack, Restarts, Square
from robustvit.core.errors import UserError
from robustvit.core.numbers import parse_number
from robustvit.evaluation.stages import Stage, Suite


def towards(name: str, attack: Attack, targets: int = 9) -> tuple[Stage, ...]:
    """One stage for each of so many classes after the predicted one."""
    return tuple(Stage(f"{name}/{rank - 1}", attack, rank) for rank in range(2, targets + 2))


AUTOATTACK: dict[str, tuple[Stage, ...]] = {
    "standard": (
        Stage("apgd-ce", APGD(loss="ce")),
        *towards("apgd-t", APGD(loss="dlr")),
        *towards("fab-t", FAB()),
        Stage("square", Square()),
    ),
    "plus": (
        Stage("apgd-ce-x5", Restarts(inner=APGD(loss="ce"), times=5)),
        Stage("apgd-dlr-x5", Restarts(inner=APGD(loss="dlr"), times=5)),
        Stage("fab-x5", Restarts(inner=FAB(), times=5)),
        Stage("square", Square()),
        *towards("apgd-t", APGD(loss="dlr")),
        *towards("fab-t", FAB()),
    ),
    "rand": (
        Stage("apgd-ce-eot20", APGD(loss="ce", eot=20)),
        Stage("apgd-dlr-eot20", APGD(loss="dlr", eot=20)),
    ),
}
"""The three versions of AutoAttack (Croce and Hein 2020), a stage for each target."""

AUTOATTACK_L1: tuple[Stage, ...] = (
    Stage("apgd-ce-x5", Restarts(inner=APGD(loss="ce"), times=5)),
    *towards("apgd-t", APGD(loss="dlr"), 5),
    *towards("fab-t", FAB()),
    Stage("square", Square()),
)
"""The standard version in L1 (Croce and Hein 2021)."""

FAST_TARGETS = 4
"""As few as the gain warrants: docs/benchmarks-fast.md shows what each target takes, and a fifth took nothing."""


def fast(name: str, precision: Any = None) -> Suite:
    """Gradients on all images in the order of their yield; AutoAttack itself, whole, on a sample of what they left."""
    stages = (
        Stage("apgd-pm", APGD(loss="pm")),
        *(Stage(f"apgd-malt/{i + 1}", APGD(loss="dlr"), i + 2, "nearest") for i in range(FAST_TARGETS)),
    )
    share = None if precision is None else _precision(name, precision)
    plain, in_l1 = (
        Suite(name, stages, tuple(replace(stage, name=f"sample: {stage.name}") for stage in sampled), share)
        for sampled in (AUTOATTACK["standard"], AUTOATTACK_L1)
    )
    return replace(plain, in_l1=in_l1)


def _precision(name: str, value: Any) -> float:
    try:
        share = float(parse_number(value))
    except (TypeError, ValueError):
        share = 0.0
    if not 1e-6 <= share < 1:
        raise UserError(f"suite '{name}': precision is a share of all images between 1e-6 and 1, such as 0.01")
    return share

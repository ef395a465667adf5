"""An image that fell at a smaller eps counts as fallen at a larger one, whose ball holds the smaller one.

This shares the work of an eps curve, and makes it fall by construction; so some of these images are attacked again at
the larger eps, as if nothing were known of them.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from robustvit.core.errors import UserError
from robustvit.core.files import Row
from robustvit.core.numbers import format_fraction
from robustvit.core.streams import seeded_subset
from robustvit.evaluation.ledger import Ledger
from robustvit.evaluation.result import EvalResult
from robustvit.evaluation.sanity import told
from robustvit.evaluation.stages import Stage, Suite
from robustvit.evaluation.subject import Subject

CARRIED = "carried over"
"""The stage, in the ledger and the result, of images that fell before."""
CARRIED_BESIDE = "carried over beside"
"""Of the control's."""
REATTACKED = 64


@dataclass(frozen=True)
class Carried:
    """Which images fell at a smaller eps, and which of them are attacked again."""

    images: tuple[int, ...] = ()
    again: tuple[int, ...] = ()
    beside: tuple[int, ...] = ()
    """Which fell to the suite's control."""
    smaller_eps: tuple[float, ...] = ()
    """All that came before on the curve."""

    @property
    def source(self) -> str:
        return format_fraction(self.smaller_eps[-1])

    def rows(self, share: Iterable[int], ledger: Ledger) -> list[Row]:
        """What the ledger must still be told of a process's share."""
        mine = set(share)
        return [
            {"stage": stage, "image": image, "outcome": "fooled", "from": self.source}
            for stage, fell in ((CARRIED, self.images), (CARRIED_BESIDE, self.beside))
            for image in fell
            if image in mine and ledger.outcome(stage, image) is None
        ]


def carried_from(smaller: EvalResult | None, subject: Subject, suite: Suite, sha256: str) -> Carried:
    if smaller is None:
        return Carried()
    if smaller.threat.norm != subject.threat.norm or smaller.threat.eps > subject.threat.eps:
        raise UserError(f"smaller: its threat, {smaller.threat}, must lie inside {subject.threat}")
    for what, same in (
        ("suite", smaller.suite == suite.name),
        ("seed", smaller.seed == subject.seed),
        ("rule on quantized images", smaller.quantized == subject.quantized),
        ("model", smaller.checkpoint["weights_sha256"] == sha256),
        ("data", smaller.data == subject.images.title and smaller.indices.tolist() == subject.indices.tolist()),
    ):
        if not same:
            raise UserError(f"smaller: a result with another {what}; only eps may differ along a curve")
    fell = torch.from_numpy(smaller.indices[smaller.is_correct & ~smaller.is_robust])
    again = fell[seeded_subset(len(fell), min(REATTACKED, len(fell)), subject.seed, "attacked again")]
    stood = smaller.stood_beside
    beside = [] if stood is None else smaller.indices[smaller.is_correct & ~stood].tolist()
    eps = (*smaller.smaller_eps, smaller.threat.eps)
    return Carried(tuple(fell.tolist()), tuple(again.tolist()), tuple(beside), eps)


def again(stage: Stage) -> str:
    """The name under which the ledger keeps what a stage does to images that it meets a second time."""
    return f"again: {stage.name}"


def masking_sign(survived: int, carried: Carried, eps: float) -> list[str]:
    if not survived:
        return []
    seen = (
        f"{survived} of {len(carried.again)} images that fell at {carried.source} withstand the same suite at "
        f"{format_fraction(eps)}"
    )
    return [told("gradient-masking", seen)]

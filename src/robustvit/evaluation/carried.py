"""An image that was fooled at a smaller eps counts as fooled at a larger one, whose ball holds the smaller one.

This saves work along an eps curve, and makes it fall by construction; so some of these images are attacked again at
the larger eps, as if nothing were known of them.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from robustvit.core.component import settings
from robustvit.core.errors import UserError
from robustvit.core.journal import Row
from robustvit.core.numbers import format_fraction, upper_bound
from robustvit.core.result import Result, ResultWarning
from robustvit.core.streams import seeded_subset
from robustvit.evaluation.ledger import Ledger
from robustvit.evaluation.plan import Stage
from robustvit.evaluation.sanity import warning
from robustvit.evaluation.subject import Subject
from robustvit.threats import LpBall

CARRIED = "carried over"
"""The stage, in the ledger and the result, of images that were fooled before."""
REATTACKED = 64
BY_CHANCE = 0.02
"""The fraction of verdicts in which two seeds of one attack may differ: 0 to 2 of 125 were seen with APGD."""
CONFIDENCE = 0.999
"""That more survive than by chance: a curve has several eps, and a page several curves."""


@settings
class Carried:
    """Which images were fooled at a smaller eps, and which of them are attacked again."""

    images: tuple[int, ...] = ()
    again: tuple[int, ...] = ()
    smaller_eps: tuple[float, ...] = ()
    """All that came before on the curve."""

    @property
    def source(self) -> str:
        return format_fraction(self.smaller_eps[-1])

    def facts(self, fooled: int, survived: int) -> dict[str, Any]:
        """For the result: how many were carried over, and how many were robust when they were attacked again."""
        counts = {"carried": fooled, "attacked_again": len(self.again), "survived_again": survived}
        return {"carried_from": self.source, **counts, "smaller_eps": list(self.smaller_eps)}

    def rows(self, shard: Iterable[int], ledger: Ledger) -> list[Row]:
        """What the ledger lacks of a process's images."""
        mine = set(shard)
        return [
            {"stage": CARRIED, "image": image, "outcome": "fooled", "from": self.source}
            for image in self.images
            if image in mine and ledger.outcome(CARRIED, image) is None
        ]


def carried_from(smaller: Result, subject: Subject, title: str, threat: LpBall, quantized: bool) -> Carried:
    """What a result at a smaller eps says of this evaluation."""
    before = smaller.threat
    if before is None or before.norm != threat.norm or before.eps > threat.eps:
        raise UserError(f"smaller: its threat, {before}, must lie inside {threat}")
    origin = smaller.provenance
    for what, same in (
        ("suite", smaller.title == title),
        ("seed", origin.seed == subject.seed),
        ("rule on quantized images", origin.settings.get("quantized", False) == quantized),
        ("model", origin.checkpoint["weights_sha256"] == subject.fingerprint()),
        ("data", origin.data_sha256 == subject.data_sha256),
    ):
        if not same:
            raise UserError(f"smaller: a result with another {what}; only eps may differ along a curve")
    fooled = torch.from_numpy(smaller.indices[smaller.is_correct & ~smaller.is_robust])
    again = fooled[seeded_subset(len(fooled), min(REATTACKED, len(fooled)), subject.seed, "attacked again")]
    eps = (*smaller.details.get("curve", {}).get("smaller_eps", ()), before.eps)
    return Carried(tuple(fooled.tolist()), tuple(again.tolist()), eps)


def again(stage: Stage) -> str:
    """The name under which the ledger keeps what a stage does to images that it meets a second time."""
    return f"again: {stage.name}"


def masking_warning(survived: int, carried: Carried, eps: float) -> Iterator[ResultWarning]:
    """Where more images survive than another seed would spare: Clopper and Pearson's bound from below."""
    total = len(carried.again)
    if total and 1 - upper_bound(total - survived, total, CONFIDENCE) > BY_CHANCE:
        before = f"{survived} of {total} images that were fooled at {carried.source}"
        yield warning("gradient-masking", f"{before} are robust to the same suite at {format_fraction(eps)}")

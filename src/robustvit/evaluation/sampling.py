"""What AutoAttack could still take off, known from a random sample of what gradients left standing."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from robustvit.core.streams import seeded_order
from robustvit.evaluation.ledger import Ledger
from robustvit.evaluation.result import wilson_interval
from robustvit.evaluation.stages import Stage

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Sample:
    """Some of the survivors, in the order of their images."""

    images: tuple[int, ...]
    survivors: int
    precision: float
    """As a share of all images: asked for, or half the width of the interval over the choice of images."""


def choose_sample(survivors: list[int], total: int, seed: int, precision: float | None) -> Sample:
    """As many as bring the bound down to `precision` if none of them falls; a larger sample only adds to a smaller."""
    if precision is None:
        low, high = wilson_interval(len(survivors), total)
        precision = (high - low) / 2
    share = precision * total / max(len(survivors), 1)
    wanted = math.ceil(math.log(1 - CONFIDENCE) / math.log1p(-share)) if share < 1 else 1
    order = seeded_order(len(survivors), seed, "sample")[: min(wanted, len(survivors))]
    images = torch.tensor(survivors, dtype=torch.int64)[order.sort().values]
    return Sample(tuple(images.tolist()), len(survivors), precision)


def upper_bound(hits: int, trials: int, confidence: float = CONFIDENCE) -> float:
    """Clopper and Pearson's one-sided bound: the largest share that lets so few hits happen with 1 - confidence."""
    if hits >= trials:
        return 1.0
    low, high = hits / trials, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _at_most(hits, trials, middle) > 1 - confidence else (low, middle)
    return high


def bound(sample: Sample, fell: int, total: int) -> dict[str, Any]:
    """What the result says of AutoAttack; without uncertainty where every survivor was in the sample."""
    whole = len(sample.images) == sample.survivors
    share = (fell / max(sample.survivors, 1)) if whole else upper_bound(fell, len(sample.images))
    at_most = share * sample.survivors / total
    return {
        "of": "autoattack",
        "confidence": 1.0 if whole else CONFIDENCE,
        "survivors": sample.survivors,
        "sampled": len(sample.images),
        "fell": fell,
        "at_most": at_most,
        "robust_accuracy_at_least": sample.survivors / total - at_most,
        "precision": sample.precision,
    }


def fell_in_sample(ledger: Ledger, stages: Sequence[Stage], sample: Sample) -> int:
    return sum(any(ledger.outcome(stage.name, image) == "fooled" for stage in stages) for image in sample.images)


def _at_most(hits: int, trials: int, share: float) -> float:
    """P(X <= hits) of a binomial X."""
    if share <= 0 or share >= 1:
        return 1.0 if share <= 0 else float(hits >= trials)
    return sum(
        math.exp(
            math.lgamma(trials + 1)
            - math.lgamma(k + 1)
            - math.lgamma(trials - k + 1)
            + k * math.log(share)
            + (trials - k) * math.log1p(-share)
        )
        for k in range(hits + 1)
    )

"""What AutoAttack could still take off, known from a random sample of what gradients left robust."""

import math
from dataclasses import dataclass
from typing import Any

import torch

from robustvit.core.numbers import upper_bound, wilson_interval
from robustvit.core.streams import seeded_order

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Sample:
    """Some of the survivors, in the order of their images."""

    images: tuple[int, ...]
    survivors: int
    precision: float
    """As a fraction of all images: asked for, or half the width of the interval over the choice of images."""


def choose_sample(survivors: list[int], total: int, seed: int, precision: float | None) -> Sample:
    """As many as bring the bound down to `precision` if none is fooled; a larger sample only adds to a smaller."""
    if precision is None:
        low, high = wilson_interval(len(survivors), total)
        precision = (high - low) / 2
    fraction = precision * total / max(len(survivors), 1)
    wanted = math.ceil(math.log(1 - CONFIDENCE) / math.log1p(-fraction)) if fraction < 1 else 1
    order = seeded_order(len(survivors), seed, "sample")[: min(wanted, len(survivors))]
    images = torch.tensor(survivors, dtype=torch.int64)[order.sort().values]
    return Sample(tuple(images.tolist()), len(survivors), precision)


def bound(sample: Sample, fooled: int, total: int) -> dict[str, Any]:
    """What the result says of AutoAttack on all survivors of the stages before it, `fooled` of the sample included.

    Without uncertainty where every survivor was in the sample.
    """
    whole = len(sample.images) == sample.survivors
    fraction = (fooled / max(sample.survivors, 1)) if whole else upper_bound(fooled, len(sample.images), CONFIDENCE)
    at_most = fraction * sample.survivors / total
    return {
        "of": "autoattack",
        "confidence": 1.0 if whole else CONFIDENCE,
        "survivors": sample.survivors,
        "sampled": len(sample.images),
        "fooled": fooled,
        "at_most": at_most,
        "robust_accuracy_at_least": sample.survivors / total - at_most,
        "precision": sample.precision,
    }


def bound_note(bound: dict[str, Any]) -> str:
    if bound["survivors"] == 0:
        return "no image was left for the attacks of AutoAttack that meet a sample alone"
    sure = "" if bound["confidence"] == 1 else f" ({100 * bound['confidence']:.0f} % sure)"
    least = f"{100 * max(0.0, bound['robust_accuracy_at_least']):.1f} %"
    unknown = bound["survivors"] - bound["sampled"]
    return (
        f"AutoAttack would leave at least {least}{sure}: it fooled {bound['fooled']} of {bound['sampled']} sampled out "
        f"of {bound['survivors']} survivors" + (f", and {unknown} did not meet it" if unknown else "")
    )

"""Named numbers of a result, with their intervals."""

from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from robustvit.core.numbers import mean_interval, wilson_interval

Kind = Literal["accuracy", "fraction", "difference", "number"]
"""`accuracy`: the fraction of images that the evaluated model gets right, which may be compared with its clean one;
`fraction`: any other, such as a shape bias or another model's accuracy; `difference`: between two accuracies."""


@dataclass(frozen=True)
class Measure:
    """A named number, with a 95 % interval over the choice of images where that applies."""

    name: str
    value: Annotated[float, Field(allow_inf_nan=False)]
    interval: tuple[float, float] | None = None
    description: str = ""
    is_detail: bool = False
    """One of many, such as the accuracy under each of 15 corruptions, which a short table leaves out."""
    kind: Kind = "number"
    """How it is written, and what it may be compared with."""

    @property
    def is_accuracy(self) -> bool:
        return self.kind == "accuracy"

    @property
    def is_fraction(self) -> bool:
        """Whether it is from 0 to 1 and written in percent."""
        return self.kind in ("accuracy", "fraction")


def accuracy_measure(name: str, hits: int, total: int, description: str = "", kind: Kind = "accuracy") -> Measure:
    """Of independent images, or decisions."""
    return Measure(name, hits / total, wilson_interval(hits, total), description, kind=kind)


def mean_accuracy_measure(
    name: str, correct: np.ndarray, description: str = "", is_detail: bool = False, kind: Kind = "accuracy"
) -> Measure:
    """Over (..., images): conditions on the same images aren't independent, each image's mean is."""
    images = correct.shape[-1]
    if correct.size == images:  # a single condition
        return replace(accuracy_measure(name, int(correct.sum()), images, description, kind), is_detail=is_detail)
    means = correct.reshape(-1, images).mean(0)
    return Measure(name, float(means.mean()), mean_interval(means), description, is_detail, kind)

"""Carlini and Wagner's L2 attack: the smallest change that fools, by Adam in a space without borders.

A loop of its own: it minimizes the distance plus c times the margin instead of ascending a loss, its iterates leave the
ball, and an outer search finds the c of each sample. It never stops before its last step, where the authors' code stops
a whole batch that no longer improves: an image's outcome must not depend on its neighbors.
"""

from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from robustvit.attacks.base import Classifier, Search, attack_loss, check_call, check_pixels, input_gradient
from robustvit.attacks.hooks import check_norms
from robustvit.core.component import component
from robustvit.core.numbers import Count
from robustvit.threats import LpBall

_BETA1, _BETA2, _TINY = 0.9, 0.999, 1e-8


@component("attack", "carlini_wagner")
class CarliniWagner:
    """Carlini-Wagner L2 (2017) with binary search; the image itself if the search fails inside the ball."""

    norms: ClassVar[tuple[str, ...]] = ("2",)

    steps: Count = 1000
    """Of each round."""
    rounds: Count = 9
    """Of the search for c: times 10 until an adversarial image is found, then bisection."""
    c: Annotated[float, Field(gt=0)] = 1e-3
    """Initial value; small, so that the distance dominates."""
    rate: Annotated[float, Field(gt=0)] = 0.01
    """Adam's."""
    confidence: Annotated[float, Field(ge=0)] = 0.0
    """By how much the wrong logit must lead."""

    @property
    def passes(self) -> int:
        return 2 * self.steps * self.rounds

    def __call__(self, model: Classifier, x: Tensor, y: Tensor, threat: LpBall, search: Search = Search()) -> Tensor:
        check_call(x, y, threat)
        check_pixels(x)
        check_norms(self, threat)
        x = x.detach()
        lead = attack_loss("cw", y, search.target)
        result, nearest = x.clone(), torch.full((len(x),), torch.inf, dtype=x.dtype, device=x.device)
        c, low, high = (torch.full_like(nearest, value) for value in (self.c, 0.0, torch.inf))
        rows, calls = torch.arange(len(x), device=x.device), 0
        for _ in range(self.rounds):
            succeeded = torch.zeros(len(x), dtype=torch.bool, device=x.device)
            adam = _Adam(x, self.rate)
            for number in range(self.steps):
                origin, point = _to_pixels(_from_pixels(x[rows])), _to_pixels(adam.at[rows])
                gradient, leads, logits = input_gradient(model, point, rows, lead)
                if search.observe is not None:
                    search.observe(calls, rows, point, leads, logits)
                calls += 1
                fools = leads > self.confidence
                succeeded[rows[fools]] = True
                length = (point - x[rows]).flatten(1).norm(dim=1)
                closer = fools & (length < nearest[rows]) & (length <= threat.eps)
                nearest[rows[closer]], result[rows[closer]] = length[closer], point[closer]
                short = (leads <= self.confidence).view(-1, 1, 1, 1)  # beyond it the margin no longer counts
                slope = 2 * (point - origin) - torch.where(short, c[rows].view(-1, 1, 1, 1) * gradient, 0)
                adam.descend(rows, slope * 2 * point * (1 - point), number + 1)
                inside = length <= threat.eps
                if search.done is not None and bool(inside.any()):
                    left = torch.zeros_like(inside)
                    left[inside] = search.done(point[inside], logits[inside], rows[inside])
                    result[rows[left]] = point[left]
                    rows = rows[~left]
                    if len(rows) == 0:
                        return result
            high, low = torch.where(succeeded, c, high), torch.where(succeeded, low, c)
            c = torch.where(high.isinf(), 10 * c, (low + high) / 2)
        return result


class _Adam:
    """Kingma and Ba 2015, of samples that may leave."""

    def __init__(self, x: Tensor, rate: float) -> None:
        self.at = _from_pixels(x)
        self._mean, self._square = torch.zeros_like(x), torch.zeros_like(x)
        self._rate = rate

    def descend(self, rows: Tensor, slope: Tensor, step: int) -> None:
        mean = self._mean[rows] = _BETA1 * self._mean[rows] + (1 - _BETA1) * slope
        square = self._square[rows] = _BETA2 * self._square[rows] + (1 - _BETA2) * slope.square()
        deviation = (square / (1 - _BETA2**step)).sqrt() + _TINY
        self.at[rows] -= self._rate * mean / (1 - _BETA1**step) / deviation


def _from_pixels(x: Tensor) -> Tensor:
    # a little inside the box: its border lies at infinity
    return ((2 * x - 1) * 0.999999).atanh()


def _to_pixels(w: Tensor) -> Tensor:
    return (w.tanh() + 1) / 2

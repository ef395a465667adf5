"""Guided margin: the search first also leaves the probabilities at its start, then follows the margin alone."""

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from robustvit.attacks.ascent import ascend, start_point
from robustvit.attacks.base import Classifier, RowLoss, Search, attack_loss
from robustvit.attacks.step_size import AnyStepSize, StepSize
from robustvit.core.component import component
from robustvit.core.numbers import Count, UnitInterval
from robustvit.threats import LpBall


@component("attack", "gama")
class GAMA:
    """GAMA-PGD (Sriramanan et al. 2020): margin of probabilities plus their squared distance from the start's.

    As in the authors' code, the start is a corner of the ball, and the distance is to the probabilities there, not to
    those of the clean image. Their step numbers (25, 60 and 85 of 100) are fractions here.
    """

    steps: Count = 100
    step: AnyStepSize = StepSize(2.0, of_eps=True)
    drops: tuple[float, ...] = (0.6, 0.85)
    """Where, as fractions of the steps, the step size is divided by `drop`."""
    drop: Annotated[float, Field(gt=0)] = 10.0
    weight: Annotated[float, Field(ge=0)] = 50.0
    """Of the distance at first."""
    guided: UnitInterval = 0.25
    """Fraction of the steps over which the weight falls to 0."""
    eot: Count = 1

    def __call__(self, model: Classifier, x: Tensor, y: Tensor, threat: LpBall, search: Search = Search()) -> Tensor:
        start = start_point(x, threat, "border", search.streams(x))
        with torch.no_grad():
            first = model(start).softmax(1)
        margin = attack_loss("pm", y, search.target)

        def plan(number: int) -> tuple[float, RowLoss]:
            weight = self.weight * max(0.0, 1 - number / (self.guided * self.steps)) if self.guided else 0.0
            step = self.step(threat.eps, self.steps) / self.drop ** sum(number >= at * self.steps for at in self.drops)

            def guided(logits: Tensor, rows: Tensor) -> Tensor:
                return margin(logits, rows) + weight * (logits.softmax(1) - first[rows]).square().sum(1)

            return step, guided if weight else margin

        return ascend(model, x, start, threat, plan, self.steps, search, self.eot)

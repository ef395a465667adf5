"""Momentum over the gradients, which transfers better between models."""

from typing import Annotated

from pydantic import Field
from torch import Tensor

from robustvit.attacks.ascent import Start, ascend, start_point
from robustvit.attacks.base import Classifier, Search, attack_loss
from robustvit.attacks.step_size import AnyStepSize, StepSize
from robustvit.core.component import component
from robustvit.core.numbers import Count
from robustvit.losses import LossName
from robustvit.threats import LpBall


@component("attack", "mim")
class MIM:
    """Momentum iterative method (Dong et al. 2018): from the image itself, eps divided among the steps."""

    steps: Count = 10
    step: AnyStepSize = StepSize(1.0, of_eps=True, per_step=True)
    momentum: Annotated[float, Field(ge=0)] = 1.0
    """What is kept of the sum of earlier gradients at each step."""
    start: Start = "none"
    loss: LossName = "ce"
    eot: Count = 1

    def __call__(self, model: Classifier, x: Tensor, y: Tensor, threat: LpBall, search: Search = Search()) -> Tensor:
        step, loss = self.step(threat.eps, self.steps), attack_loss(self.loss, y, search.target)
        return ascend(
            model,
            x,
            threat,
            lambda number: (step, loss),
            steps=self.steps,
            start=start_point(x, threat, self.start, search.streams(x)),
            momentum=self.momentum,
            eot=self.eot,
            search=search,
        )

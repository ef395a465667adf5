"""Projected ascent: one loop, of which FGSM and PGD are settings."""

from typing import Literal

import torch
from torch import Tensor

from robustvit.attacks.base import Classifier, Count, Done, Observe, RowLoss, attack_loss, check_pixels, input_gradient
from robustvit.attacks.step_size import AnyStepSize, StepSize
from robustvit.core.component import component
from robustvit.core.streams import SampleStreams
from robustvit.losses import LossName
from robustvit.threats import LpBall

Start = Literal["uniform", "uniform+1e-5", "normal", "none"]
"""uniform over the ball; the same plus 1e-5 (A Light Recipe's code); normal with deviation 0.001 (TRADES); none: x."""


def ascend(
    model: Classifier,
    x: Tensor,
    threat: LpBall,
    loss: RowLoss,
    *,
    steps: int,
    step: float,
    start: Start,
    random: SampleStreams,
    eot: int = 1,
    done: Done | None = None,
    observe: Observe | None = None,
) -> Tensor:
    """The last iterate of `steps` steepest-ascent steps on `loss`, each projected onto the threat."""
    check_pixels(x)
    x = x.detach()
    x_adv = start_point(x, threat, start, random)
    rows = torch.arange(len(x), device=x.device)
    for number in range(steps):
        point = x_adv[rows]
        gradient, values, logits = input_gradient(model, point, rows, loss, eot)
        if observe is not None:
            observe(number, rows, point, values, logits)
        if done is not None:
            going = ~done(point, logits, rows)
            rows, point, gradient = rows[going], point[going], gradient[going]
            if len(rows) == 0:
                break
        x_adv[rows] = threat.project(x[rows], point + step * threat.steepest(gradient))
    return x_adv


def start_point(x: Tensor, threat: LpBall, start: Start, random: SampleStreams) -> Tensor:
    """A fresh tensor, allowed by the threat."""
    if start == "uniform":
        return threat.random_start(x, random)
    if start == "uniform+1e-5":
        return threat.project(x, threat.random_start(x, random) + 1e-5)
    if start == "normal":
        return threat.project(x, x + 0.001 * random.normal(x.shape[1:], at="start", dtype=x.dtype))
    return x.clone()


@component("attack", "pgd")
class PGD:
    """Projected gradient descent (Madry et al. 2018)."""

    steps: Count = 10
    step: AnyStepSize = StepSize(1.5, of_eps=True, per_step=True)
    """1.5 eps/steps, as A Light Recipe attacks with 5 to 500 steps (its table X and figure 5)."""
    start: Start = "uniform"
    loss: LossName = "ce"
    eot: Count = 1
    """Passes that a gradient is averaged over, for models that are random."""

    def __call__(
        self,
        model: Classifier,
        x: Tensor,
        y: Tensor,
        threat: LpBall,
        *,
        random: SampleStreams,
        target: Tensor | None = None,
        done: Done | None = None,
        observe: Observe | None = None,
    ) -> Tensor:
        return self.ascend(
            model, x, threat, attack_loss(self.loss, y, target), random=random, done=done, observe=observe
        )

    def ascend(
        self,
        model: Classifier,
        x: Tensor,
        threat: LpBall,
        loss: RowLoss,
        *,
        random: SampleStreams,
        done: Done | None = None,
        observe: Observe | None = None,
    ) -> Tensor:
        """The same search on another loss, such as TRADES's divergence."""
        return ascend(
            model,
            x,
            threat,
            loss,
            steps=self.steps,
            step=self.step(threat.eps, self.steps),
            start=self.start,
            random=random,
            eot=self.eot,
            done=done,
            observe=observe,
        )


@component("attack", "fgsm")
class FGSM:
    """One step to the border (Goodfellow et al. 2015); fast training adds a uniform start (Wong et al. 2020)."""

    step: AnyStepSize = StepSize(1.0, of_eps=True)
    start: Start = "none"
    loss: LossName = "ce"
    eot: Count = 1

    def __call__(
        self,
        model: Classifier,
        x: Tensor,
        y: Tensor,
        threat: LpBall,
        *,
        random: SampleStreams,
        target: Tensor | None = None,
        done: Done | None = None,
        observe: Observe | None = None,
    ) -> Tensor:
        return ascend(
            model,
            x,
            threat,
            attack_loss(self.loss, y, target),
            steps=1,
            step=self.step(threat.eps, 1),
            start=self.start,
            random=random,
            eot=self.eot,
            done=done,
            observe=observe,
        )

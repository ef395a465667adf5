"""Auto-PGD: projected ascent with momentum that halves its own step (Croce and Hein 2020)."""

from dataclasses import dataclass
from functools import partial
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from robustvit.attacks.apgd_l1 import walk_balls
from robustvit.attacks.apgd_walk import Walk, run_walk
from robustvit.attacks.base import Classifier, Search, attack_loss, check_pixels, start_noise
from robustvit.core.component import component
from robustvit.core.numbers import Count
from robustvit.core.streams import SampleStreams
from robustvit.losses import LossName
from robustvit.threats import LpBall, lp_norm

_MOMENTUM = 0.75


@component("attack", "apgd")
class APGD:
    """Auto-PGD (Croce and Hein 2020): no step size to choose; as in AutoAttack."""

    steps: Count = 100
    loss: LossName = "ce"
    rho: Annotated[float, Field(gt=0, le=1)] = 0.75
    """A step is halved when fewer than this fraction of the steps since the last check raised the loss."""
    eot: Count = 1
    """Passes that a gradient is averaged over, for models that are random."""

    def __call__(self, model: Classifier, x: Tensor, y: Tensor, threat: LpBall, search: Search = Search()) -> Tensor:
        check_pixels(x)
        x = x.detach()
        loss = attack_loss(self.loss, y, search.target)
        if threat.norm == "1":
            return walk_balls(model, x, y, threat, loss, search, steps=self.steps, eot=self.eot)
        start = _start(x, threat, search.streams(x))
        rule = partial(MomentumRule.begin, threat=threat, checks=check_steps(self.steps), rho=self.rho)
        return run_walk(model, x, y, loss, start, rule, search, steps=self.steps, eot=self.eot)[1]


def check_steps(steps: int) -> dict[int, int]:
    """At which steps the step size is reconsidered, and over how many steps before each."""
    length, shortest, shrink = (max(int(fraction * steps), 1) for fraction in (0.22, 0.06, 0.03))
    checks, at = {}, length
    while at <= steps:
        checks[at] = length
        length = max(length - shrink, shortest)
        at += length
    return checks


def _start(x: Tensor, threat: LpBall, random: SampleStreams) -> Tensor:
    """Noise scaled to the border of the ball, then cut by the box."""
    return (x + threat.eps * _unit(start_noise(x, threat, random), threat)).clamp(0, 1)


def _unit(delta: Tensor, threat: LpBall) -> Tensor:
    return delta / (lp_norm(delta.flatten(1), threat.norm).view(-1, 1, 1, 1) + 1e-12)


def _projected(x: Tensor, x_adv: Tensor, threat: LpBall) -> Tensor:
    # not threat.project: the reference divides by the length plus 1e-12, and it must agree to 1e-9
    if threat.norm == "inf":
        return torch.clamp(x_adv, min=x - threat.eps, max=x + threat.eps).clamp(0, 1)
    delta = x_adv - x
    length = lp_norm(delta.flatten(1), threat.norm).view(-1, 1, 1, 1)
    return (x + delta / (length + 1e-12) * length.clamp_max(threat.eps)).clamp(0, 1)


@dataclass
class MomentumRule:
    """Steps in Linf and L2, mixed with the movement before; after a halving it still points from the point left."""

    threat: LpBall
    checks: dict[int, int]
    rho: float
    step: Tensor
    x_old: Tensor
    loss_best_before: Tensor
    halved_before: Tensor

    @classmethod
    def begin(cls, walk: Walk, threat: LpBall, checks: dict[int, int], rho: float) -> "MomentumRule":
        step = torch.full((len(walk.x), 1, 1, 1), 2 * threat.eps, dtype=walk.x.dtype, device=walk.x.device)
        return cls(threat, checks, rho, step, walk.x_adv, walk.loss_best, torch.ones_like(walk.ever_wrong))

    def move(self, walk: Walk, number: int) -> Tensor:
        """One step along the gradient; projected before and after the mix."""
        momentum = 1.0 if number == 1 else _MOMENTUM
        movement = walk.x_adv - self.x_old
        self.x_old = walk.x_adv
        direction = walk.gradient.sign() if self.threat.norm == "inf" else _unit(walk.gradient, self.threat)
        stepped = _projected(walk.x, walk.x_adv + self.step * direction, self.threat)
        mixed = walk.x_adv + (stepped - walk.x_adv) * momentum + movement * (1 - momentum)
        return _projected(walk.x, mixed, self.threat)

    def adapt(self, walk: Walk, number: int) -> None:
        """Halve the step of a sample that oscillates or no longer improves, and send it back to its best point."""
        if number not in self.checks:
            return
        length = self.checks[number]
        # as in the reference, the first loss is compared with zero
        before = [walk.losses[i - 1] if i else torch.zeros_like(walk.loss_best) for i in range(number - length, number)]
        rises = torch.stack([walk.losses[number - length + i] > loss for i, loss in enumerate(before)]).sum(0)
        stuck = ~self.halved_before & (self.loss_best_before >= walk.loss_best)
        halved = (rises <= length * self.rho) | stuck
        self.halved_before, self.loss_best_before = halved, walk.loss_best
        self.step = torch.where(halved.view(-1, 1, 1, 1), self.step / 2, self.step)
        walk.return_to_best(halved)

"""Auto-PGD: projected ascent with momentum that halves its own step (Croce and Hein 2020).

A loop of its own: unlike in `ascent`, each sample carries a step size, a best point and a record. Follows the authors'
implementation (auto-attack a392200) on the same start, their oddities included, because its verdict is the field's
yardstick: the first comparison of losses is with a record of zeros, and after a halving the momentum still points from
the iterate that was left. What differs: noise belongs to the image, not to the batch; a sample may leave when done; the
last iterate needs no gradient.
"""

from dataclasses import dataclass, fields
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from robustvit.attacks import apgd_l1
from robustvit.attacks.base import (
    Classifier,
    Count,
    Search,
    attack_loss,
    check_pixels,
    input_gradient,
    look,
)
from robustvit.core.component import component
from robustvit.core.streams import SampleStreams
from robustvit.losses import LossName
from robustvit.threats import LpBall

_MOMENTUM = 0.75


@component("attack", "apgd")
class APGD:
    """Auto-PGD (Croce and Hein 2020): no step size to choose; as in AutoAttack."""

    steps: Count = 100
    loss: LossName = "ce"
    rho: Annotated[float, Field(gt=0, le=1)] = 0.75
    """A step is halved when fewer than this share of the steps since the last check raised the loss."""
    eot: Count = 1
    """Passes that a gradient is averaged over, for models that are random."""

    def __call__(self, model: Classifier, x: Tensor, y: Tensor, threat: LpBall, search: Search = Search()) -> Tensor:
        check_pixels(x)
        x = x.detach()
        loss = attack_loss(self.loss, y, search.target)
        if threat.norm == "1":
            return apgd_l1.descend_balls(model, x, y, threat, loss, search, steps=self.steps, eot=self.eot)
        start = _start(x, threat, search.streams(x))
        rows = torch.arange(len(x), device=x.device)
        gradient, values, logits = input_gradient(model, start, rows, loss, self.eot)
        walk = _Walk.begin(rows, x, start, gradient, values, 2 * threat.eps)
        result = start.clone()
        checks = check_steps(self.steps)
        for number in range(self.steps + 1):
            if number > 0:
                walk.x_adv = _moved(walk, threat, 1.0 if number == 1 else _MOMENTUM)
                gradient, values, logits = look(
                    model, walk.x_adv, walk.rows, loss, self.eot, walk.gradient, number == self.steps
                )
                walk.remember(gradient, values)
            if search.observe is not None:
                search.observe(number, walk.rows, walk.x_adv, values, logits)
            walk.remember_wrong(logits.argmax(1) != y[walk.rows])
            if search.done is not None:
                left = search.done(walk.x_adv, logits, walk.rows)
                if bool(left.any()):
                    result[walk.rows[left]] = walk.x_adv[left]
                    walk = walk.only(~left)
                    if len(walk.rows) == 0:
                        return result
            if number in checks:
                walk.check(number - 1, checks[number], self.rho)
        result[walk.rows] = torch.where(walk.ever_wrong.view(-1, 1, 1, 1), walk.x_wrong, walk.x_best)
        return result


def check_steps(steps: int) -> dict[int, int]:
    """At which steps the step size is reconsidered, and over how many steps before each."""
    length, shortest, shrink = (max(int(share * steps), 1) for share in (0.22, 0.06, 0.03))
    found, at = {}, length
    while at <= steps:
        found[at] = length
        length = max(length - shrink, shortest)
        at += length
    return found


def _start(x: Tensor, threat: LpBall, random: SampleStreams) -> Tensor:
    """Noise scaled to the border of the ball, then cut by the box."""
    if threat.norm == "inf":
        noise = 2 * random.uniform(x.shape[1:], at="start", dtype=x.dtype) - 1
    else:
        noise = random.normal(x.shape[1:], at="start", dtype=x.dtype)
    return (x + threat.eps * _unit(noise, threat)).clamp(0, 1)


def _unit(delta: Tensor, threat: LpBall) -> Tensor:
    flat = delta.flatten(1)
    length = flat.abs().amax(1) if threat.norm == "inf" else (flat**2).sum(1).sqrt()
    return delta / (length.view(-1, 1, 1, 1) + 1e-12)


def _projected(x: Tensor, x_adv: Tensor, threat: LpBall) -> Tensor:
    # not threat.project: the reference divides by the length plus 1e-12, and it must agree to 1e-9
    if threat.norm == "inf":
        return torch.clamp(x_adv, min=x - threat.eps, max=x + threat.eps).clamp(0, 1)
    delta = x_adv - x
    length = (delta.flatten(1) ** 2).sum(1).sqrt().view(-1, 1, 1, 1)
    return (x + delta / (length + 1e-12) * length.clamp_max(threat.eps)).clamp(0, 1)


def _moved(walk: "_Walk", threat: LpBall, momentum: float) -> Tensor:
    """One step along the gradient, mixed with the movement before it; projected before and after the mix."""
    movement = walk.x_adv - walk.x_old
    walk.x_old = walk.x_adv
    direction = walk.gradient.sign() if threat.norm == "inf" else _unit(walk.gradient, threat)
    stepped = _projected(walk.x, walk.x_adv + walk.step * direction, threat)
    mixed = walk.x_adv + (stepped - walk.x_adv) * momentum + movement * (1 - momentum)
    return _projected(walk.x, mixed, threat)


@dataclass
class _Walk:
    """What each sample still in the batch carries; every field's rows (the record's columns) are samples."""

    rows: Tensor
    x: Tensor
    x_adv: Tensor
    x_old: Tensor
    x_best: Tensor
    x_wrong: Tensor
    ever_wrong: Tensor
    gradient: Tensor
    gradient_best: Tensor
    loss_best: Tensor
    loss_best_before: Tensor
    halved_before: Tensor
    step: Tensor
    record: list[Tensor]

    @classmethod
    def begin(cls, rows: Tensor, x: Tensor, start: Tensor, gradient: Tensor, loss: Tensor, step: float) -> "_Walk":
        return cls(
            rows=rows,
            x=x,
            x_adv=start,
            x_old=start,
            x_best=start,
            x_wrong=start,
            ever_wrong=torch.zeros(len(x), dtype=torch.bool, device=x.device),
            gradient=gradient,
            gradient_best=gradient,
            loss_best=loss,
            loss_best_before=loss,
            halved_before=torch.ones(len(x), dtype=torch.bool, device=x.device),
            step=torch.full((len(x), 1, 1, 1), step, dtype=x.dtype, device=x.device),
            record=[],
        )

    def only(self, kept: Tensor) -> "_Walk":
        values = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "record"}
        cut = {name: value[kept] for name, value in values.items()}
        return _Walk(**cut, record=[losses[kept] for losses in self.record])

    def remember(self, gradient: Tensor, loss: Tensor) -> None:
        self.gradient = gradient
        self.record.append(loss)
        better = loss > self.loss_best
        picked = better.view(-1, 1, 1, 1)
        self.x_best = torch.where(picked, self.x_adv, self.x_best)
        self.gradient_best = torch.where(picked, gradient, self.gradient_best)
        self.loss_best = torch.where(better, loss, self.loss_best)

    def remember_wrong(self, wrong: Tensor) -> None:
        """The last misclassified iterate: its lead may be too small to leave by, yet stand before the judge."""
        if bool(wrong.any()):
            self.x_wrong = torch.where(wrong.view(-1, 1, 1, 1), self.x_adv, self.x_wrong)
            self.ever_wrong = self.ever_wrong | wrong

    def check(self, number: int, length: int, rho: float) -> None:
        """Halve the step of a sample that oscillates or no longer improves, and send it back to its best point."""
        before = [
            self.record[i - 1] if i else torch.zeros_like(self.loss_best)
            for i in range(number - length + 1, number + 1)
        ]
        rises = torch.stack([self.record[number - length + 1 + i] > loss for i, loss in enumerate(before)]).sum(0)
        stuck = ~self.halved_before & (self.loss_best_before >= self.loss_best)
        halved = (rises <= length * rho) | stuck
        self.halved_before, self.loss_best_before = halved, self.loss_best
        picked = halved.view(-1, 1, 1, 1)
        self.step = torch.where(picked, self.step / 2, self.step)
        self.x_adv = torch.where(picked, self.x_best, self.x_adv)
        self.gradient = torch.where(picked, self.gradient_best, self.gradient)

"""Auto-PGD: projected ascent with momentum that halves its own step (Croce and Hein 2020).

A loop of its own, apart from `ascent`: step sizes belong to the sample. Follows the authors' implementation (commit
a392200 of auto-attack) on the same start, their oddities included, because its verdict is the field's yardstick. What
differs: noise belongs to the image, not to the batch; a sample may leave when done; the last iterate needs no gradient.

In L1 (Croce and Hein 2021) without momentum: steps go along the signs of the largest gradients alone, as many as the
best point so far suggests, and the ball shrinks from 3 eps over 2 eps to eps, as in auto-attack's standard version.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, Protocol, TypeVar

import torch
from pydantic import Field
from torch import Tensor

from robustvit.attacks.base import (
    Classifier,
    RowLoss,
    Search,
    attack_loss,
    check_call,
    check_pixels,
    input_gradient,
    start_noise,
)
from robustvit.core.component import component
from robustvit.core.numbers import Count
from robustvit.core.streams import SampleStreams
from robustvit.losses import LossName
from robustvit.threats import LpBall, lp_norm

D = TypeVar("D")

_MOMENTUM = 0.75
_BALLS = ((3.0, 0.3), (2.0, 0.3), (1.0, 0.4))
"""How large, in eps, and which fraction of the steps is spent there."""


@component("attack", "apgd")
class APGD:
    """Auto-PGD (Croce and Hein 2020): no step size to choose; as in AutoAttack."""

    steps: Count = 100
    """Of the search."""
    loss: LossName = "ce"
    """That the search raises."""
    rho: Annotated[float, Field(gt=0, le=1)] = 0.75
    """A step is halved when fewer than this fraction of the steps since the last check raised the loss."""
    eot: Count = 1
    """Passes that a gradient is averaged over, for models that are random."""

    def __call__(self, model: Classifier, x: Tensor, y: Tensor, threat: LpBall, search: Search = Search()) -> Tensor:
        check_call(x, y, threat)
        check_pixels(x)
        x = x.detach()
        loss = attack_loss(self.loss, y, search.target)
        if threat.norm == "1":
            return self._walk_balls(model, x, y, threat, loss, search)
        start = _start(x, threat, search.streams(x))
        rule = partial(MomentumRule.begin, threat=threat, checks=check_steps(self.steps), rho=self.rho)
        return run_walk(model, x, y, loss, start, rule, search, steps=self.steps, eot=self.eot)[1]

    def _walk_balls(
        self, model: Classifier, x: Tensor, y: Tensor, threat: LpBall, loss: RowLoss, search: Search
    ) -> Tensor:
        """The last misclassified iterate inside the ball, else the one of the highest loss."""
        point = x + search.streams(x).normal(x.shape[1:], at="start", dtype=x.dtype)
        result, first, left = point, 0, self.steps
        for factor, fraction in _BALLS:
            ball, last = threat.scaled(factor), factor == 1
            count = max(left, 1) if last else math.ceil(fraction * self.steps)
            rule = partial(SparseRule.begin, ball=ball, steps=count)
            within = search if last else replace(search, done=None)
            start = ball.project(x, point)
            point, result = run_walk(model, x, y, loss, start, rule, within, steps=count, eot=self.eot, first=first)
            first, left = first + count + 1, left - count
        return result


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
class Walk:
    """What each sample still in the batch carries; every tensor's rows are samples."""

    rows: Tensor
    x: Tensor
    x_adv: Tensor
    x_best: Tensor
    x_wrong: Tensor
    ever_wrong: Tensor
    gradient: Tensor
    gradient_best: Tensor
    loss_best: Tensor
    losses: list[Tensor]
    """Of the iterates after the start."""

    def update(self, loss: Tensor) -> None:
        self.losses.append(loss)
        better = loss > self.loss_best
        picked = better.view(-1, 1, 1, 1)
        self.x_best = torch.where(picked, self.x_adv, self.x_best)
        self.gradient_best = torch.where(picked, self.gradient, self.gradient_best)
        self.loss_best = torch.where(better, loss, self.loss_best)

    def update_wrong(self, wrong: Tensor) -> None:
        """The last misclassified iterate: its lead may be too small to leave by, yet enough for the evaluator."""
        if bool(wrong.any()):
            self.x_wrong = torch.where(wrong.view(-1, 1, 1, 1), self.x_adv, self.x_wrong)
            self.ever_wrong = self.ever_wrong | wrong

    def return_to_best(self, which: Tensor) -> None:
        picked = which.view(-1, 1, 1, 1)
        self.x_adv = torch.where(picked, self.x_best, self.x_adv)
        self.gradient = torch.where(picked, self.gradient_best, self.gradient)


class StepRule(Protocol):
    """How a walk moves, and when its steps get shorter; a dataclass, the rows of whose tensors are samples."""

    def move(self, walk: Walk, number: int) -> Tensor: ...
    def adapt(self, walk: Walk, number: int) -> None: ...


def run_walk(
    model: Classifier,
    x: Tensor,
    y: Tensor,
    loss: RowLoss,
    start: Tensor,
    make_rule: Callable[[Walk], StepRule],
    search: Search = Search(),
    *,
    steps: int,
    eot: int = 1,
    first: int = 0,
) -> tuple[Tensor, Tensor]:
    """The iterates of the highest loss, and those to return: misclassified ones where there are any.

    `first` is the number under which the start is observed.
    """
    rows = torch.arange(len(x), device=x.device)
    gradient, values, logits = input_gradient(model, start, rows, loss, eot)
    never = torch.zeros(len(x), dtype=torch.bool, device=x.device)
    walk = Walk(rows, x, start, start, start, never, gradient, gradient, values, [])
    rule = make_rule(walk)
    result = start.clone()
    for number in range(steps + 1):
        if number > 0:
            walk.x_adv = rule.move(walk, number)
            if number < steps:
                walk.gradient, values, logits = input_gradient(model, walk.x_adv, walk.rows, loss, eot)
            else:  # the last iterate needs no gradient
                with torch.no_grad():
                    logits = model(walk.x_adv)
                values = loss(logits, walk.rows)
            walk.update(values)
        if search.observe is not None:
            search.observe(first + number, walk.rows, walk.x_adv, values, logits)
        walk.update_wrong(logits.argmax(1) != y[walk.rows])
        if search.done is not None:
            left = search.done(walk.x_adv, logits, walk.rows)
            if bool(left.any()):
                result[walk.rows[left]] = walk.x_adv[left]
                walk, rule = _only_rows(walk, ~left), _only_rows(rule, ~left)
                if len(walk.rows) == 0:
                    return result, result
        rule.adapt(walk, number)
    best = result.clone()
    best[walk.rows] = walk.x_best
    result[walk.rows] = torch.where(walk.ever_wrong.view(-1, 1, 1, 1), walk.x_wrong, walk.x_best)
    return best, result


def _only_rows(value: D, kept: Tensor) -> D:
    """A dataclass with these rows of every tensor and list of tensors."""
    changes: dict[str, Any] = {}
    for name, held in vars(value).items():
        if isinstance(held, Tensor):
            changes[name] = held[kept]
        elif isinstance(held, list):
            changes[name] = [one[kept] for one in held]
    return replace(value, **changes)  # type: ignore[type-var]


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


@dataclass
class SparseRule:
    """A step distributed evenly over the largest gradients."""

    ball: LpBall
    every: int
    """Steps between two checks."""
    step: Tensor
    changed: Tensor
    """Pixels that the best point changed at the last check."""
    fraction: Tensor
    """Of the pixels, how many a step moves."""

    @classmethod
    def begin(cls, walk: Walk, ball: LpBall, steps: int) -> "SparseRule":
        changed = _changed(walk.x, walk.x_adv)
        step = torch.full((len(walk.x), 1, 1, 1), ball.eps, dtype=walk.x.dtype, device=walk.x.device)
        return cls(ball, max(int(0.04 * steps), 1), step, changed, changed / walk.x[0].numel() / 1.5)

    def move(self, walk: Walk, number: int) -> Tensor:
        size = walk.gradient.abs().flatten(1)
        index = ((1 - self.fraction) * size.shape[1]).clamp(0, size.shape[1] - 1).long()
        smallest = size.sort(1).values.gather(1, index[:, None]).view(-1, 1, 1, 1)
        signs = torch.where(walk.gradient.abs() >= smallest, walk.gradient.sign(), 0)
        length = signs.abs().sum((1, 2, 3), keepdim=True) + 1e-10
        return self.ball.project(walk.x, walk.x_adv + self.step * signs / length)

    def adapt(self, walk: Walk, number: int) -> None:
        """A point that became sparser restarts from its best with whole steps; else the steps get shorter."""
        if number == 0 or number % self.every:
            return
        changed, eps = _changed(walk.x, walk.x_best), self.ball.eps
        sparser = changed / self.changed < 0.95
        self.fraction = changed / walk.x[0].numel() / 1.5
        self.step = torch.where(sparser.view(-1, 1, 1, 1), eps, self.step / 1.5).clamp(eps / 10, eps)
        self.changed = changed
        walk.return_to_best(sparser)


def _changed(x: Tensor, x_adv: Tensor) -> Tensor:
    return (x_adv != x).flatten(1).sum(1).to(x.dtype)

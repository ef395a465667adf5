"""Auto-PGD in L1 (Croce and Hein 2021): sparse steps, first in larger balls.

A loop of its own beside `apgd`: it knows no momentum, steps along the signs of the largest gradients alone, as many as
the best point so far suggests, and its ball shrinks from 3 eps over 2 eps to eps. Follows auto-attack's code, whose
standard version searches L1 balls so; what differs is told in `apgd`.
"""

import math
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from robustvit.attacks.base import Classifier, RowLoss, Search, input_gradient, look
from robustvit.threats import LpBall

_BALLS = ((3.0, 0.3), (2.0, 0.3), (1.0, 0.4))
"""How large, in eps, and which share of the steps is spent there."""


def descend_balls(
    model: Classifier, x: Tensor, y: Tensor, threat: LpBall, loss: RowLoss, search: Search, *, steps: int, eot: int
) -> Tensor:
    """The last misclassified iterate inside the ball, else the one of the highest loss."""
    point = x + search.streams(x).normal(x.shape[1:], at="start", dtype=x.dtype)
    found, looks, left = point, 0, steps
    for factor, share in _BALLS:
        ball, last = threat.scaled(factor), factor == 1
        count = max(left, 1) if last else math.ceil(share * steps)
        start = ball.project(x, point)
        within = search if last else replace(search, done=None)
        point, found = descend(model, x, y, ball, loss, start, within, steps=count, eot=eot, looks=looks)
        looks, left = looks + count + 1, left - count
    return found


def descend(
    model: Classifier,
    x: Tensor,
    y: Tensor,
    ball: LpBall,
    loss: RowLoss,
    start: Tensor,
    search: Search = Search(),
    *,
    steps: int,
    eot: int = 1,
    looks: int = 0,
) -> tuple[Tensor, Tensor]:
    """One ball's share of the steps: the points of the highest loss, and the adversarial ones where there are any."""
    rows = torch.arange(len(x), device=x.device)
    gradient, values, logits = input_gradient(model, start, rows, loss, eot)
    walk = _Walk.begin(rows, x, start, gradient, values, ball.eps)
    result = start.clone()
    every = max(int(0.04 * steps), 1)
    for number in range(steps + 1):
        if number > 0:
            walk.x_adv = _moved(walk, ball)
            gradient, values, logits = look(model, walk.x_adv, walk.rows, loss, eot, walk.gradient, number == steps)
            walk.remember(gradient, values)
        if search.observe is not None:
            search.observe(looks + number, walk.rows, walk.x_adv, values, logits)
        walk.remember_wrong(logits.argmax(1) != y[walk.rows])
        if search.done is not None:
            left = search.done(walk.x_adv, logits, walk.rows)
            result[walk.rows[left]] = walk.x_adv[left]
            walk = walk.only(~left)
            if len(walk.rows) == 0:
                return result, result
        if number > 0 and number % every == 0:
            walk.check(ball.eps)
    best = result.clone()
    best[walk.rows] = walk.x_best
    result[walk.rows] = torch.where(walk.ever_wrong.view(-1, 1, 1, 1), walk.x_wrong, walk.x_best)
    return best, result


def _moved(walk: "_Walk", ball: LpBall) -> Tensor:
    """A step shared out evenly over the largest gradients."""
    size = walk.gradient.abs().flatten(1)
    index = ((1 - walk.share) * size.shape[1]).clamp(0, size.shape[1] - 1).long()
    smallest = size.sort(1).values.gather(1, index[:, None]).view(-1, 1, 1, 1)
    signs = torch.where(walk.gradient.abs() >= smallest, walk.gradient.sign(), 0)
    length = signs.abs().sum((1, 2, 3), keepdim=True) + 1e-10
    return ball.project(walk.x, walk.x_adv + walk.step * signs / length)


@dataclass
class _Walk:
    """What each sample still in the batch carries; every field's rows are samples."""

    rows: Tensor
    x: Tensor
    x_adv: Tensor
    x_best: Tensor
    x_wrong: Tensor
    ever_wrong: Tensor
    gradient: Tensor
    gradient_best: Tensor
    loss_best: Tensor
    changed: Tensor
    """Pixels that the best point changed at the last check."""
    share: Tensor
    """Of the pixels, how many a step moves."""
    step: Tensor

    @classmethod
    def begin(cls, rows: Tensor, x: Tensor, start: Tensor, gradient: Tensor, loss: Tensor, eps: float) -> "_Walk":
        changed = _changed(x, start)
        return cls(
            rows=rows,
            x=x,
            x_adv=start,
            x_best=start,
            x_wrong=start,
            ever_wrong=torch.zeros(len(x), dtype=torch.bool, device=x.device),
            gradient=gradient,
            gradient_best=gradient,
            loss_best=loss,
            changed=changed,
            share=changed / x[0].numel() / 1.5,
            step=torch.full((len(x), 1, 1, 1), eps, dtype=x.dtype, device=x.device),
        )

    def only(self, kept: Tensor) -> "_Walk":
        if bool(kept.all()):
            return self
        return _Walk(**{field.name: getattr(self, field.name)[kept] for field in fields(self)})

    def remember(self, gradient: Tensor, loss: Tensor) -> None:
        self.gradient = gradient
        better = loss > self.loss_best
        picked = better.view(-1, 1, 1, 1)
        self.x_best = torch.where(picked, self.x_adv, self.x_best)
        self.gradient_best = torch.where(picked, gradient, self.gradient_best)
        self.loss_best = torch.where(better, loss, self.loss_best)

    def remember_wrong(self, wrong: Tensor) -> None:
        self.x_wrong = torch.where(wrong.view(-1, 1, 1, 1), self.x_adv, self.x_wrong)
        self.ever_wrong = self.ever_wrong | wrong

    def check(self, eps: float) -> None:
        """A point that became sparser starts anew from its best with whole steps; else the steps get shorter."""
        changed = _changed(self.x, self.x_best)
        sparser = changed / self.changed < 0.95
        picked = sparser.view(-1, 1, 1, 1)
        self.share = changed / self.x[0].numel() / 1.5
        self.step = torch.where(picked, eps, self.step / 1.5).clamp(eps / 10, eps)
        self.changed = changed
        self.x_adv = torch.where(picked, self.x_best, self.x_adv)
        self.gradient = torch.where(picked, self.gradient_best, self.gradient)


def _changed(x: Tensor, x_adv: Tensor) -> Tensor:
    return (x_adv != x).flatten(1).sum(1).to(x.dtype)

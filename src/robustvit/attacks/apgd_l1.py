"""Auto-PGD in L1 (Croce and Hein 2021): sparse steps, first in larger balls.

No momentum: steps go along the signs of the largest gradients alone, as many as the best point so far suggests, and the
ball shrinks from 3 eps over 2 eps to eps, as in auto-attack's standard version.
"""

import math
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from robustvit.attacks.apgd_walk import Walk, run_walk
from robustvit.attacks.base import Classifier, RowLoss, Search
from robustvit.threats import LpBall

_BALLS = ((3.0, 0.3), (2.0, 0.3), (1.0, 0.4))
"""How large, in eps, and which fraction of the steps is spent there."""


def walk_balls(
    model: Classifier, x: Tensor, y: Tensor, threat: LpBall, loss: RowLoss, search: Search, *, steps: int, eot: int
) -> Tensor:
    """The last misclassified iterate inside the ball, else the one of the highest loss."""
    point = x + search.streams(x).normal(x.shape[1:], at="start", dtype=x.dtype)
    result, first, left = point, 0, steps
    for factor, fraction in _BALLS:
        ball, last = threat.scaled(factor), factor == 1
        count = max(left, 1) if last else math.ceil(fraction * steps)
        rule = partial(SparseRule.begin, ball=ball, steps=count)
        within = search if last else replace(search, done=None)
        start = ball.project(x, point)
        point, result = run_walk(model, x, y, loss, start, rule, within, steps=count, eot=eot, first=first)
        first, left = first + count + 1, left - count
    return result


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

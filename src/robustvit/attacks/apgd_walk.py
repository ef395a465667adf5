"""The loop of Auto-PGD: each sample carries its iterate and its best point; a step rule moves it and adapts.

A loop of its own, apart from `ascent`: step sizes belong to the sample. Follows the authors' implementation (commit
a392200 of auto-attack) on the same start, their oddities included, because its verdict is the field's yardstick. What
differs: noise belongs to the image, not to the batch; a sample may leave when done; the last iterate needs no gradient.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from robustvit.attacks.base import Classifier, RowLoss, Search, input_gradient

D = TypeVar("D")


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

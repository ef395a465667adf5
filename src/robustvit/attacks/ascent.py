"""Projected ascent: one loop, of which FGSM, PGD, MIM and GAMA are settings."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field, PlainValidator
from torch import Tensor

from robustvit.attacks.base import Classifier, RowLoss, Search, attack_loss, check_call, check_pixels, input_gradient
from robustvit.attacks.hooks import check_norms
from robustvit.core.component import component
from robustvit.core.numbers import Count, UnitInterval, format_fraction, parse_number
from robustvit.core.streams import SampleStreams
from robustvit.losses import LossName
from robustvit.threats import LpBall

Start = Literal["uniform", "uniform+1e-5", "normal", "border", "none"]
"""uniform over the ball; the same plus 1e-5 (A Light Recipe's code); normal with deviation 0.001 (TRADES); border: a
random corner of the Linf ball, a random point of another ball's surface (GAMA); none: the image itself."""

_RELATIVE = re.compile(r"^(?:(?P<factor>[^*]+)\*)?eps(?:/(?P<by>steps|[0-9]+))?$")


@dataclass(frozen=True)
class StepSize:
    """Absolute (`2/255`) or a fraction of eps (`1.5*eps/steps`), which follows an eps that warms up."""

    factor: float
    of_eps: bool = False
    per_step: bool = False

    def __call__(self, eps: float, steps: int) -> float:
        return self.factor * (eps if self.of_eps else 1.0) / (steps if self.per_step else 1)

    def __repr__(self) -> str:
        return f"'{self}'"

    def __str__(self) -> str:
        if not self.of_eps:
            return format_fraction(self.factor)
        head = "eps" if self.factor == 1 else f"{format_fraction(self.factor)}*eps"
        return f"{head}/steps" if self.per_step else head


def parse_step_size(value: Any) -> StepSize:
    if isinstance(value, StepSize):
        return value
    match = _RELATIVE.match(value.replace(" ", "")) if isinstance(value, str) else None
    if match:
        factor, per_step = parse_number(match["factor"] or "1"), match["by"] == "steps"
        if match["by"] and not per_step:
            factor *= parse_number(f"1/{match['by']}")
        step = StepSize(factor, of_eps=True, per_step=per_step)
    else:
        try:
            step = StepSize(float(parse_number(value)))
        except (ValueError, TypeError):
            forms = "a number such as 2/255, or a fraction of eps such as eps/4 or 1.5*eps/steps"
            raise ValueError(f"a step size is {forms}, not {value!r}") from None
    if not 0 < step.factor < float("inf"):
        raise ValueError(f"a step size is above 0, not {value!r}")
    return step


AnyStepSize = Annotated[StepSize, PlainValidator(parse_step_size)]

Plan = Iterable[tuple[float, RowLoss]]
"""Length and loss of each step."""


def ascend(
    model: Classifier,
    x: Tensor,
    start: Tensor,
    threat: LpBall,
    plan: Plan,
    search: Search,
    eot: int = 1,
    momentum: float | None = None,
) -> Tensor:
    """The last iterate of the plan's steepest-ascent steps from `start`, each projected onto the threat.

    With `momentum`, a step follows the sum of all gradients so far, each scaled to length 1 in L1 and the older ones
    times `momentum` at every step.
    """
    x, x_adv = x.detach(), start.clone()
    rows = torch.arange(len(x), device=x.device)
    velocity = torch.zeros_like(x)
    for number, (step, loss) in enumerate(plan):
        point = x_adv[rows]
        direction, values, logits = input_gradient(model, point, rows, loss, eot)
        if search.observe is not None:
            search.observe(number, rows, point, values, logits)
        if search.done is not None:
            going = ~search.done(point, logits, rows)
            rows, point, direction = rows[going], point[going], direction[going]
            if len(rows) == 0:
                break
        if momentum is not None:
            velocity[rows] = direction = momentum * velocity[rows] + _of_length_one(direction)
        x_adv[rows] = threat.project(x[rows], point + step * threat.steepest(direction, point))
    return x_adv


def start_point(x: Tensor, threat: LpBall, start: Start, random: SampleStreams) -> Tensor:
    """A fresh tensor, allowed by the threat."""
    check_pixels(x)
    x = x.detach()
    if start == "uniform":
        return threat.random_start(x, random)
    if start == "uniform+1e-5":
        return threat.project(x, threat.random_start(x, random) + 1e-5)
    if start == "none":
        return x.clone()
    noise = random.normal(x.shape[1:], at="start", dtype=x.dtype)
    return threat.project(x, x + (0.001 * noise if start == "normal" else threat.eps * threat.steepest(noise)))


def _of_length_one(gradient: Tensor) -> Tensor:
    # by the mean, not the sum, and from the largest entry: the squares and sums of small gradients underflow
    tiny = torch.finfo(gradient.dtype).tiny
    scaled = gradient / gradient.abs().amax((1, 2, 3), keepdim=True).clamp_min(tiny)
    return scaled / scaled.abs().mean((1, 2, 3), keepdim=True).clamp_min(tiny)


@component("attack", "pgd")
class PGD:
    """Projected gradient descent (Madry et al. 2018)."""

    steps: Count = 10
    """Of the search."""
    step: AnyStepSize = StepSize(1.5, of_eps=True, per_step=True)
    """1.5 eps/steps, as A Light Recipe attacks with 5 to 500 steps (its table X and figure 5)."""
    start: Start = "uniform"
    """Where the search begins: a random point of the ball, or the image itself (none)."""
    loss: LossName = "ce"
    """That the search raises."""
    eot: Count = 1
    """Passes that a gradient is averaged over, for models that are random."""

    def __call__(self, model: Classifier, x: Tensor, y: Tensor, threat: LpBall, search: Search = Search()) -> Tensor:
        check_call(x, y, threat)
        return self.ascend(model, x, threat, attack_loss(self.loss, y, search.target), search)

    def ascend(self, model: Classifier, x: Tensor, threat: LpBall, loss: RowLoss, search: Search = Search()) -> Tensor:
        """The same search on another loss, such as TRADES's divergence."""
        start = start_point(x, threat, self.start, search.streams(x))
        plan = [(self.step(threat.eps, self.steps), loss)] * self.steps
        return ascend(model, x, start, threat, plan, search, self.eot)


@component("attack", "fgsm")
class FGSM:
    """One step to the border (Goodfellow et al. 2015); fast training adds a uniform start (Wong et al. 2020)."""

    norms: ClassVar[tuple[str, ...]] = ("inf", "2")  # in L1 one step changes hardly more than one pixel
    steps: ClassVar[int] = 1

    step: AnyStepSize = StepSize(1.0, of_eps=True)
    """Size of a step."""
    start: Start = "none"
    """Where the search begins: a random point of the ball, or the image itself (none)."""
    loss: LossName = "ce"
    """That the search raises."""
    eot: Count = 1
    """Passes that a gradient is averaged over, for models that are random."""

    def __call__(self, model: Classifier, x: Tensor, y: Tensor, threat: LpBall, search: Search = Search()) -> Tensor:
        check_call(x, y, threat)
        check_norms(self, threat)
        return PGD(1, self.step, self.start, self.loss, self.eot)(model, x, y, threat, search)


@component("attack", "mim")
class MIM:
    """Momentum iterative method (Dong et al. 2018): from the image itself, eps divided among the steps."""

    steps: Count = 10
    """Of the search."""
    step: AnyStepSize = StepSize(1.0, of_eps=True, per_step=True)
    """Size of a step."""
    momentum: Annotated[float, Field(ge=0)] = 1.0
    """What is kept of the sum of earlier gradients at each step."""
    start: Start = "none"
    """Where the search begins: a random point of the ball, or the image itself (none)."""
    loss: LossName = "ce"
    """That the search raises."""
    eot: Count = 1
    """Passes that a gradient is averaged over, for models that are random."""

    def __call__(self, model: Classifier, x: Tensor, y: Tensor, threat: LpBall, search: Search = Search()) -> Tensor:
        check_call(x, y, threat)
        start = start_point(x, threat, self.start, search.streams(x))
        plan = [(self.step(threat.eps, self.steps), attack_loss(self.loss, y, search.target))] * self.steps
        return ascend(model, x, start, threat, plan, search, self.eot, self.momentum)


@component("attack", "gama")
class GAMA:
    """GAMA-PGD (Sriramanan et al. 2020): margin of probabilities plus their squared distance from the start's.

    As in the authors' code, the start is a corner of the ball, and the distance is to the probabilities there, not to
    those of the clean image. Their step numbers (25, 60 and 85 of 100) are fractions here.
    """

    steps: Count = 100
    """Of the search."""
    step: AnyStepSize = StepSize(2.0, of_eps=True)
    """Size of the first steps."""
    drops: tuple[float, ...] = (0.6, 0.85)
    """Where, as fractions of the steps, the step size is divided by `drop`."""
    drop: Annotated[float, Field(gt=0)] = 10.0
    """What the step size is divided by."""
    weight: Annotated[float, Field(ge=0)] = 50.0
    """Of the distance at first."""
    guided: UnitInterval = 0.25
    """Fraction of the steps over which the weight falls to 0."""
    eot: Count = 1
    """Passes that a gradient is averaged over, for models that are random."""

    def __call__(self, model: Classifier, x: Tensor, y: Tensor, threat: LpBall, search: Search = Search()) -> Tensor:
        check_call(x, y, threat)
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

        return ascend(model, x, start, threat, map(plan, range(self.steps)), search, self.eot)

"""One step of training a classifier: search, loss, gradient, optimizer."""

import math
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from robustvit.core.streams import SampleStreams
from robustvit.core.world import World
from robustvit.models.heads import through
from robustvit.models.modes import keeping_statistics, set_training
from robustvit.objectives.base import Losses, Perturbed, at
from robustvit.threats import LpBall
from robustvit.training.parts import Parts
from robustvit.training.recipe import Phase, Turn


@dataclass(frozen=True)
class StepReport:
    """What a step saw of each image of this process."""

    loss: Tensor
    parts: dict[str, Tensor]
    hits: Tensor
    attacked: bool
    gradient_norm: float
    """Of the whole batch; nan where its loss isn't finite."""
    clean_hits: Tensor | None = None
    """Of the same weights in the same mode, where they are known."""

    @property
    def finite(self) -> bool:
        """Else the weights stay as they are."""
        return math.isfinite(self.gradient_norm)


def take_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    phase: Phase,
    turn: Turn,
    x: Tensor,
    y: Tensor,
    threat: LpBall,
    random: SampleStreams,
    progress: float,
    asks_clean: bool = False,
    parts: Parts | None = None,
    key: tuple[str | int, ...] = (),
) -> StepReport:
    """The gradient of a batch, through the head of the turn, and one step of the optimizer.

    `x` and `y` are the rows of the parts that are this process's own, by default all in `phase.parts`; `key` seeds
    global generators for each part. Clean accuracy is reported where the loss knows it; with `asks_clean`, it takes
    another pass before the step.
    """
    objective, wrapper = at(turn.objective, progress), phase.around_step
    model, cut = through(model, turn.head), parts or Parts.of(len(y), phase.parts, World())
    buffers = [buffer.clone() for buffer in model.buffers()]
    set_training(model)
    optimizer.zero_grad(set_to_none=True)
    searched: dict[int, Perturbed] = {}
    for number, rows in cut:
        with cut.seeded(number, (*key, "search")):
            searched[number] = objective.perturb(model, x[rows], y[rows], threat, random=random[rows])
    losses: dict[int, Losses] = {}

    def backward(number: int, rows: slice) -> bool:
        """Of the mean loss, the part of these rows."""
        with cut.seeded(number, (*key, "loss")):
            part = objective.loss(model, x[rows], searched[number], y[rows])
            torch.autograd.backward(part.total.mean() * (len(part.total) / cut.rows))
        losses[number] = part.detached()
        return bool(torch.isfinite(part.total).all())

    gradient = partial(cut.add_gradients, model, backward)
    with wrapper.around(model, gradient, progress) if wrapper is not None else nullcontext():
        is_finite = gradient()
    norm = _clipped_norm(model, phase.clip_norm) if is_finite else math.nan
    made, attacked = list(losses.values()), searched[cut.own[0]].attacked
    report = StepReport(
        loss=torch.cat([part.total for part in made]),
        parts={name: torch.cat([part.parts[name] for part in made]) for name in made[0].parts},
        hits=hits(torch.cat([part.logits for part in made]), y),
        attacked=attacked,
        gradient_norm=norm,
        clean_hits=_clean_hits(model, made, x, y, asks_clean, cut, key) if attacked else None,
    )
    if report.finite:
        optimizer.step()
    else:
        with torch.no_grad():
            for buffer, value in zip(model.buffers(), buffers, strict=True):
                buffer.copy_(value)
    return report


def _clipped_norm(model: nn.Module, limit: float | None) -> float:
    """Of the gradient before it was clipped."""
    trained = [parameter for parameter in model.parameters() if parameter.grad is not None]
    return float(nn.utils.clip_grad_norm_(trained, math.inf if limit is None else limit))


def _clean_hits(
    model: nn.Module, losses: list[Losses], x: Tensor, y: Tensor, asks: bool, parts: Parts, key: tuple[str | int, ...]
) -> Tensor | None:
    known = [part.clean_logits for part in losses if part.clean_logits is not None]
    if len(known) == len(losses):
        return hits(torch.cat(known), y)
    if not asks:
        return None
    logits = []
    with torch.no_grad(), keeping_statistics(model):
        for number, rows in parts:
            with parts.seeded(number, (*key, "clean")):
                logits.append(model(x[rows]))
    return hits(torch.cat(logits), y)


def hits(logits: Tensor, y: Tensor) -> Tensor:
    """(B,) 1 where the class is right, the most probable one where `y` are probabilities."""
    return (logits.argmax(1) == (y if y.ndim == 1 else y.argmax(1))).float()

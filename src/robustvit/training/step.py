"""One step of training a classifier: search, loss, gradient, optimizer."""

import math
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from robustvit.core.streams import SampleStreams
from robustvit.models.heads import through
from robustvit.models.modes import keeping_statistics, set_training
from robustvit.objectives.base import Losses, at
from robustvit.threats import LpBall
from robustvit.training.recipe import Phase, Turn


@dataclass(frozen=True)
class StepReport:
    """What a step saw of each image."""

    loss: Tensor
    parts: dict[str, Tensor]
    hits: Tensor
    attacked: bool
    gradient_norm: float
    clean_hits: Tensor | None = None
    """Of the same weights in the same mode, where they are known."""

    @property
    def finite(self) -> bool:
        return math.isfinite(self.gradient_norm) and bool(torch.isfinite(self.loss).all())


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
) -> StepReport:
    """The gradient of a batch in `phase.parts`, through the head of the turn, and one step of the optimizer.

    Clean accuracy is reported where the loss knows it; with `asks_clean`, it takes another pass before the step.
    """
    objective, wrapper = at(turn.objective, progress), phase.around_step
    model = through(model, turn.head)

    def add_gradient(rows: Tensor) -> tuple[Losses, bool]:
        """Of the mean loss, the part of these rows; returns their losses, and whether they were attacked."""
        images, labels = x[rows], y[rows]
        perturbed = objective.perturb(model, images, labels, threat, random=random[rows])

        def loss() -> Losses:
            return objective.loss(model, images, perturbed, labels)

        with wrapper.around(model, lambda: loss().total.mean(), progress) if wrapper is not None else nullcontext():
            losses = loss()
            torch.autograd.backward(losses.total.mean() * (len(rows) / len(y)))
        return losses, perturbed.attacked

    statistics = [buffer.clone() for buffer in model.buffers()]
    set_training(model)
    optimizer.zero_grad(set_to_none=True)
    reports = [add_gradient(rows) for rows in torch.arange(len(y), device=y.device).chunk(phase.parts)]
    trained = [parameter for parameter in model.parameters() if parameter.grad is not None]
    norm = nn.utils.clip_grad_norm_(trained, phase.clip_norm if phase.clip_norm is not None else math.inf)
    losses = [part for part, _ in reports]
    report = StepReport(
        loss=torch.cat([part.total.detach() for part in losses]),
        parts={name: torch.cat([part.parts[name].detach() for part in losses]) for name in losses[0].parts},
        hits=hits(torch.cat([part.logits.detach() for part in losses]), y),
        attacked=reports[0][1],
        gradient_norm=float(norm),
        clean_hits=_clean_hits(model, losses, x, y, asks_clean) if reports[0][1] else None,
    )
    if report.finite:
        optimizer.step()
    else:
        with torch.no_grad():
            for buffer, value in zip(model.buffers(), statistics, strict=True):
                buffer.copy_(value)
    return report


def _clean_hits(model: nn.Module, losses: list[Losses], x: Tensor, y: Tensor, asks: bool) -> Tensor | None:
    known = [part.clean_logits for part in losses if part.clean_logits is not None]
    if len(known) == len(losses):
        return hits(torch.cat([logits.detach() for logits in known]), y)
    if not asks:
        return None
    with torch.no_grad(), keeping_statistics(model):
        return hits(model(x), y)


def hits(logits: Tensor, y: Tensor) -> Tensor:
    """(B,) 1 where the class is right, the most probable one where `y` are probabilities."""
    return (logits.argmax(1) == (y if y.ndim == 1 else y.argmax(1))).float()

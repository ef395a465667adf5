"""One step: search, loss, gradient, optimizer; a gradient that isn't finite changes nothing."""

import math
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from robustvit.core.streams import SampleStreams
from robustvit.models.modes import set_training
from robustvit.objectives.base import Losses, at
from robustvit.threats import LpBall
from robustvit.training.recipe import Phase


@dataclass(frozen=True)
class StepReport:
    """What a step saw of each image."""

    loss: Tensor
    parts: dict[str, Tensor]
    hits: Tensor
    attacked: bool
    gradient_norm: float

    @property
    def finite(self) -> bool:
        return math.isfinite(self.gradient_norm) and bool(torch.isfinite(self.loss).all())


def take_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    phase: Phase,
    x: Tensor,
    y: Tensor,
    threat: LpBall,
    random: SampleStreams,
    progress: float,
) -> StepReport:
    """The gradient of a batch in `phase.accumulate` parts, and one step of the optimizer."""
    objective, wrapper = at(phase.objective, progress), phase.around_step

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
    reports = [add_gradient(rows) for rows in torch.arange(len(y), device=y.device).chunk(phase.accumulate)]
    trained = [parameter for parameter in model.parameters() if parameter.grad is not None]
    norm = nn.utils.clip_grad_norm_(trained, phase.clip_norm if phase.clip_norm is not None else math.inf)
    losses = [part for part, _ in reports]
    report = StepReport(
        loss=torch.cat([part.total.detach() for part in losses]),
        parts={name: torch.cat([part.parts[name].detach() for part in losses]) for name in losses[0].parts},
        hits=hits(torch.cat([part.logits.detach() for part in losses]), y),
        attacked=reports[0][1],
        gradient_norm=float(norm),
    )
    if report.finite:
        optimizer.step()
    else:
        with torch.no_grad():
            for buffer, value in zip(model.buffers(), statistics, strict=True):
                buffer.copy_(value)
    return report


def hits(logits: Tensor, y: Tensor) -> Tensor:
    """(B,) 1 where the class is right, the most probable one where `y` are probabilities."""
    return (logits.argmax(1) == (y if y.ndim == 1 else y.argmax(1))).float()

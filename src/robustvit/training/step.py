"""One step: search, loss, gradient, optimizer; a gradient that isn't finite moves nothing."""

import math
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from robustvit.core.streams import SampleStreams
from robustvit.models.modes import set_training
from robustvit.objectives.base import Losses, Objective, at
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
    """The gradient of a batch in `phase.accumulate` parts, and one move of the optimizer."""
    objective = at(phase.objective, progress)
    statistics = [buffer.clone() for buffer in model.buffers()]
    set_training(model)
    optimizer.zero_grad(set_to_none=True)
    seen = []
    for rows in torch.arange(len(y), device=y.device).chunk(phase.accumulate):
        share = len(rows) / len(y)
        seen.append(_add_gradient(model, objective, phase, x[rows], y[rows], threat, random[rows], progress, share))
    trained = [parameter for parameter in model.parameters() if parameter.grad is not None]
    norm = nn.utils.clip_grad_norm_(trained, phase.clip_norm if phase.clip_norm is not None else math.inf)
    losses = [part for part, _ in seen]
    classes = y if y.ndim == 1 else y.argmax(1)
    report = StepReport(
        loss=torch.cat([part.total.detach() for part in losses]),
        parts={name: torch.cat([part.parts[name].detach() for part in losses]) for name in losses[0].parts},
        hits=(torch.cat([part.logits.detach() for part in losses]).argmax(1) == classes).float(),
        attacked=seen[0][1],
        gradient_norm=float(norm),
    )
    if report.finite:
        optimizer.step()
    else:
        with torch.no_grad():
            for buffer, value in zip(model.buffers(), statistics, strict=True):
                buffer.copy_(value)
    return report


def _add_gradient(
    model: nn.Module,
    objective: Objective,
    phase: Phase,
    x: Tensor,
    y: Tensor,
    threat: LpBall,
    random: SampleStreams,
    progress: float,
    share: float,
) -> tuple[Losses, bool]:
    """The losses, and whether their images were attacked; `share` of the mean's gradient is added to the weights'."""
    perturbed = objective.perturb(model, x, y, threat, random=random)

    def loss() -> Losses:
        return objective.loss(model, x, perturbed, y)

    wrapper = phase.around_step
    with wrapper.around(model, lambda: loss().total.mean(), progress) if wrapper is not None else nullcontext():
        losses = loss()
        torch.autograd.backward(losses.total.mean() * share)
    return losses, perturbed.attacked

"""The loss around single images, along the attack's own direction and a random one: smooth, or masked gradients?"""

from functools import lru_cache
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from robustvit.analysis.checks import check_gradient, required
from robustvit.analysis.streaming import State, accumulate
from robustvit.attacks.base import gradient_to, logits_with_gradient
from robustvit.core.component import component
from robustvit.core.figures import Heatmap
from robustvit.core.finding import Finding
from robustvit.core.numbers import Count
from robustvit.core.streams import sample_streams
from robustvit.evaluation.store import Store
from robustvit.evaluation.subject import Subject
from robustvit.losses import cross_entropy
from robustvit.threats import LpBall


@component("analysis", "loss_surface")
class LossSurface:
    """Cross-entropy on a grid around an image, along the steepest direction of the threat and a random one."""

    shown: Count = 4
    """Images."""
    points: Annotated[int, Field(ge=3)] = 21
    """On each axis."""
    reach: Annotated[float, Field(gt=0)] = 2.0
    """In both directions, in eps."""
    threat: LpBall | None = None
    """Its eps is the unit; null: that of the call."""

    def check(self, subject: Subject) -> None:
        required(self.threat, "loss_surface")
        check_gradient(subject)

    def passes(self, subject: Subject) -> int:
        return min(self.shown, len(subject.indices)) * (2 + self.points**2)

    def __call__(self, subject: Subject, store: Store) -> Finding:
        threat, shown = required(self.threat, "loss_surface"), subject.indices[: self.shown]
        offsets = np.linspace(-self.reach, self.reach, self.points)
        state: State = {"losses": np.zeros((len(shown), self.points, self.points))}
        directions = lru_cache(maxsize=1)(lambda number: _directions(subject, shown[number : number + 1], threat))

        def add(step: tuple[int, int]) -> int:
            number, row = step
            state["losses"][number, row] = _losses(subject, *directions(number), row, offsets)
            return self.points

        steps = [(number, row) for number in range(len(shown)) for row in range(self.points)]
        total = len(steps) * self.points
        accumulate(steps, state, add, store, "loss surface", total, subject.quiet, "points")
        names = tuple(f"{offset:.3g}" for offset in offsets)
        arrays = {f"loss-{index}": state["losses"][number] for number, index in enumerate(shown.tolist())}
        maps = [
            Heatmap(
                f"Loss around image {key.removeprefix('loss-')}", names, names, row_title="gradient",
                column_title="random", in_percent=False, array=key,
            )
            for key in arrays
        ]  # fmt: skip
        return Finding(
            "Loss surface",
            f"Cross-entropy around images of {subject.images.title}. In units of {threat}: rows along the "
            "steepest direction of the loss, columns along a random one of the same length. A rough surface, or "
            "one that is flat along the gradient, means that attacks by gradients say little.",
            charts=tuple(maps),
            arrays=arrays,
        )


def _directions(subject: Subject, index: Tensor, threat: LpBall) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """An image and its label, the steepest direction of the loss and a random one, both of length eps."""
    x, y = subject.batch(index)
    point = x.clone().requires_grad_()
    with torch.enable_grad():
        gradient = gradient_to(point, cross_entropy(logits_with_gradient(subject.model, point), y).sum())
    random = sample_streams(subject.seed, index).child("loss surface").to(x.device)
    noise = random.normal(tuple(x.shape[1:]), at="x")
    along, across = (threat.eps * threat.steepest(one.to(x.dtype)) for one in (gradient, noise))
    return x, y, along, across


def _losses(
    subject: Subject, x: Tensor, y: Tensor, along: Tensor, across: Tensor, row: int, offsets: np.ndarray
) -> np.ndarray:
    """Of one row of the surface: at one offset along the steepest direction, and all along the random one."""
    columns = torch.from_numpy(offsets).to(x)
    line = (x + columns[row] * along + columns[:, None, None, None] * across).clamp(0, 1)
    with torch.no_grad():
        losses = [cross_entropy(subject(part), y.expand(len(part))) for part in torch.split(line, subject.batch_size)]
    found: np.ndarray = torch.cat(losses).double().cpu().numpy()
    return found

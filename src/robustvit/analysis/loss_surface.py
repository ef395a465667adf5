"""The loss around single images, along the attack's own direction and a random one: smooth, or masked gradients?"""

from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from robustvit.attacks.base import gradient_to, logits_with_gradient
from robustvit.core.component import component
from robustvit.core.errors import UserError
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

    def passes(self, subject: Subject) -> int:
        return min(self.shown, len(subject.indices)) * (2 + self.points**2)

    def __call__(self, subject: Subject, store: Store) -> Finding:
        if self.threat is None:
            raise UserError("loss_surface.threat: needed, such as {norm: inf, eps: 8/255}")
        shown = subject.indices[: self.shown]
        places = np.linspace(-self.reach, self.reach, self.points)
        names = tuple(f"{place:.3g}" for place in places)
        maps, arrays = [], {}
        for index in torch.split(shown, 1):
            surface = self._surface(subject, index, self.threat, places)
            key = f"loss-{int(index)}"
            maps.append(
                Heatmap(
                    f"Loss around image {int(index)}", names, names, row_title="gradient", column_title="random",
                    in_percent=False, array=key,
                )
            )  # fmt: skip
            arrays[key] = surface
        return Finding(
            "Loss surface",
            f"Cross-entropy around images of {subject.images.title}. In units of {self.threat}: rows along the "
            "steepest direction of the loss, columns along a random one of the same length. A rough surface, or "
            "one that is flat along the gradient, means that attacks by gradients say little.",
            charts=tuple(maps),
            arrays=arrays,
        )

    def _surface(self, subject: Subject, index: Tensor, threat: LpBall, places: np.ndarray) -> np.ndarray:
        x, y = subject.batch(index)
        point = x.requires_grad_()
        with torch.enable_grad():
            gradient = gradient_to(point, cross_entropy(logits_with_gradient(subject.model, point), y).sum())
        noise = (
            sample_streams(subject.seed, index).child("loss surface").to(x.device).normal(tuple(x.shape[1:]), at="x")
        )
        along, across = (threat.eps * threat.steepest(one.to(x.dtype)) for one in (gradient, noise))
        steps = torch.from_numpy(places).to(x)
        rows = []
        with torch.no_grad():
            for step in steps:
                line = (x + step * along + steps[:, None, None, None] * across).clamp(0, 1)
                losses = [cross_entropy(subject(part), y.expand(len(part))) for part in line.split(subject.batch_size)]
                rows.append(torch.cat(losses).double().cpu().numpy())
        return np.stack(rows)

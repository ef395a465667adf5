"""The passes of a training step, counted by taking the step with a stand-in for the network."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product

import torch
from torch import Tensor, nn

from robustvit.core.streams import sample_streams, seeded_globals
from robustvit.models import Normalized
from robustvit.threats import LpBall
from robustvit.training.classify import CLEAN_EVERY
from robustvit.training.recipe import Phase
from robustvit.training.step import take_step

IMAGES = 4
"""Enough for what compares images with each other; passes are given for one image."""
MOMENTS = 20
"""At which a phase is looked at: objectives, eps and wrappers change over time."""


@dataclass(frozen=True)
class Passes:
    """Of one image of the batch in one step."""

    forward: float = 0.0
    """All forward passes."""
    input_gradient: float = 0.0
    """Backward passes to the pixels alone, as attacks take them."""
    gradient: float = 0.0
    """Backward passes to the parameters."""
    held_in_search: float = 0.0
    """Images whose activations are kept at the same time for a gradient of the pixels, at most."""
    held_in_loss: float = 0.0
    """The same for a gradient of the parameters."""


class _Counter:
    """The forward pass of a model whose own would take too long or has no memory for its weights."""

    def __init__(self, model: nn.Module, num_classes: int) -> None:
        self.num_classes = num_classes
        self.scale = nn.Parameter(torch.ones(()))
        model.requires_grad_(False)
        model.register_parameter("stand_in", self.scale)  # frozen and released as the others would be
        model.forward = self.forward
        self.clear()

    def clear(self) -> None:
        self.passes = self.input_gradients = self.gradients = 0
        self.held = {"search": 0, "loss": 0}
        self.most = dict(self.held)

    def forward(self, x: Tensor, **options: object) -> Tensor:
        """Logits with a gradient to the pixels and to the parameters, where these are asked for."""
        images = len(x)
        self.passes += images
        scale = self.scale * 1
        x = x * 1
        if torch.is_grad_enabled() and scale.requires_grad:
            self._hold("loss", images)
            scale.register_hook(self._released("loss", images))  # type: ignore[no-untyped-call]
        elif torch.is_grad_enabled() and x.requires_grad:
            self._hold("search", images)
            x.register_hook(self._released("search", images))  # type: ignore[no-untyped-call]
        levels = torch.linspace(-1, 1, self.num_classes, dtype=x.dtype)
        return x.mean((1, 2, 3))[:, None] * levels * scale

    def _hold(self, kind: str, images: int) -> None:
        self.held[kind] += images
        self.most[kind] = max(self.most[kind], self.held[kind])

    def _released(self, kind: str, images: int) -> Callable[[Tensor], None]:
        def count(gradient: Tensor) -> None:
            self.held[kind] = max(0, self.held[kind] - images)
            if kind == "loss":
                self.gradients += images
            else:
                self.input_gradients += images

        return count


def count_passes(
    model: Normalized, phase: Phase, threat: LpBall, img_size: int, num_classes: int, moments: int = MOMENTS
) -> Passes:
    """On average over a phase, for one image; `model` may be on the meta device and can't be used afterwards."""
    counter = _Counter(model, num_classes)
    optimizer = torch.optim.SGD([counter.scale], lr=0.0)
    whole = replace(phase, accumulate=1, batch_size=IMAGES)
    turns = [replace(turn, head=None) for turn in phase.turns]  # the stand-in has one output
    x, y = torch.full((IMAGES, 3, img_size, img_size), 0.5), torch.arange(IMAGES) % num_classes
    if phase.mixing is not None and phase.mixing.is_on:
        y = torch.full((IMAGES, num_classes), 1 / num_classes)
    totals, most = torch.zeros(3, dtype=torch.float64), {"search": 0, "loss": 0}
    for moment in range(moments):
        progress = (moment + 0.5) / moments
        eps = threat.scaled(phase.eps_schedule(progress) if phase.eps_schedule else 1.0)
        for turn, (asks, weight) in product(turns, ((False, 1 - 1 / CLEAN_EVERY), (True, 1 / CLEAN_EVERY))):
            counter.clear()
            with seeded_globals(0, "plan", moment):
                random = sample_streams(0, torch.arange(IMAGES))
                take_step(model, optimizer, whole, turn, x, y, eps, random, progress, asks)
            seen = torch.tensor([counter.passes, counter.input_gradients, counter.gradients], dtype=torch.float64)
            totals += weight * seen
            most = {kind: max(most[kind], counter.most[kind]) for kind in most}
    forward, input_gradient, gradient = (totals / (moments * IMAGES * len(turns))).tolist()
    return Passes(forward, input_gradient, gradient, most["search"] / IMAGES, most["loss"] / IMAGES)

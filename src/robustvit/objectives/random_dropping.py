"""Searches through a model of which parts are left out at random (Mo et al. 2022)."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from robustvit.core.component import component
from robustvit.core.errors import UserError
from robustvit.core.numbers import Count, Number
from robustvit.core.streams import SampleStreams
from robustvit.models.attention_probe import attention_blocks
from robustvit.objectives.adversarial import Adversarial
from robustvit.objectives.base import AnyObjective, Losses, Perturbed, check
from robustvit.threats import LpBall


@component("objective", "random_dropping")
class RandomDropping:
    """Attention random dropping and perturbation random masking (Mo et al. 2022) around the search of `inner`.

    At every step of the search the gradient of each attention block passes with probability `keep`, and a patch of the
    perturbation is shown to the model with the same probability. The perturbation that comes out is whole.
    """

    inner: AnyObjective = Adversarial()
    attention: bool = True
    """Drop gradients of attention blocks; the forward pass stays as it is."""
    patches: bool = True
    """Mask patches of the perturbation."""
    patch_size: Count = 4
    warmup: Annotated[Number, Field(gt=0, le=1)] = 10 / 40
    """`keep` rises from 0 to 1 over this share of the training: 10 of the authors' 40 epochs."""
    keep: Annotated[Number, Field(ge=0, le=1)] = 0.5
    """Set by the progress of the training; this is what holds outside of one."""

    def at(self, progress: float) -> "RandomDropping":
        keep = min(1.0, progress / self.warmup)
        return RandomDropping(self.inner, self.attention, self.patches, self.patch_size, self.warmup, keep)

    def check(self, model: nn.Module) -> None:
        check(self.inner, model)
        if self.attention:
            attention_blocks(model)  # or a sentence

    def perturb(self, model: nn.Module, x: Tensor, y: Tensor, threat: LpBall, *, random: SampleStreams) -> Perturbed:
        if self.keep == 1:
            return self.inner.perturb(model, x, y, threat, random=random)
        masked = _Masked(model, x, self.patch_size, self.keep) if self.patches else model
        with _dropped_attention(model, self.keep if self.attention else 1.0):
            return self.inner.perturb(masked, x, y, threat, random=random)

    def loss(self, model: nn.Module, x: Tensor, perturbed: Perturbed, y: Tensor) -> Losses:
        return self.inner.loss(model, x, perturbed, y)


class _Masked(nn.Module):
    """The model behind a mask of the perturbation that is drawn anew at every pass."""

    def __init__(self, model: nn.Module, x: Tensor, patch_size: int, keep: float) -> None:
        super().__init__()
        self.model, self.patch_size, self.keep = model, patch_size, keep
        self.x = x.detach()

    def forward(self, x_adv: Tensor) -> Tensor:
        if x_adv.shape != self.x.shape:
            raise UserError("random_dropping: patches are masked only in searches that keep the whole batch")
        height, width = (-(-side // self.patch_size) for side in x_adv.shape[2:])
        shown = (torch.rand(len(x_adv), 1, height, width, device=x_adv.device) < self.keep).to(x_adv.dtype)
        mask = F.interpolate(shown, scale_factor=self.patch_size)[..., : x_adv.shape[2], : x_adv.shape[3]]
        logits: Tensor = self.model(self.x + mask * (x_adv - self.x))
        return logits


@contextmanager
def _dropped_attention(model: nn.Module, keep: float) -> Iterator[None]:
    """Each pass draws for each attention block whether its gradient passes; its output is the same either way."""

    def drop(module: nn.Module, inputs: object, output: Tensor) -> Tensor:
        return output if float(torch.rand(())) < keep else output.detach()

    blocks = attention_blocks(model) if keep < 1 else {}
    handles = [block.register_forward_hook(drop) for block in blocks.values()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()

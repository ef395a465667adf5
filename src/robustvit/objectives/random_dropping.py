"""Searches through a model of which parts are left out at random (Mo et al. 2022)."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Annotated

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from robustvit.core.component import component
from robustvit.core.errors import UserError
from robustvit.core.numbers import Count, Number, UnitInterval
from robustvit.core.streams import SampleStreams
from robustvit.models.attention_probe import attention_blocks
from robustvit.objectives.adversarial import Adversarial
from robustvit.objectives.base import AnyObjective, Losses, Perturbed, check
from robustvit.threats import LpBall


@component("objective", "random_dropping")
class RandomDropping:
    """Attention random dropping and perturbation random masking (Mo et al. 2022) around the search of `inner`.

    At every step of the search the gradient of each attention block passes with probability `keep`, and a patch of the
    perturbation is shown to the model with the same probability. The resulting perturbation is not masked.
    """

    inner: AnyObjective = Adversarial()
    """The objective whose search is changed."""
    attention: bool = True
    """Drop gradients of attention blocks; the forward pass stays as it is."""
    patches: bool = True
    """Mask patches of the perturbation."""
    patch_size: Count = 4
    """Of the masked patches, in pixels."""
    warmup: Annotated[Number, Field(gt=0, le=1)] = 10 / 40
    """`keep` rises from 0 to 1 over this fraction of the training: 10 of the authors' 40 epochs."""
    keep: UnitInterval = 0.5
    """Set by the progress of the training; this is what holds outside of one."""

    def at(self, progress: float) -> "RandomDropping":
        return replace(self, keep=min(1.0, progress / self.warmup))

    def check(self, model: nn.Module) -> None:
        check(self.inner, model)
        if self.attention:
            attention_blocks(model)  # raises where there are none

    def perturb(self, model: nn.Module, x: Tensor, y: Tensor, threat: LpBall, *, random: SampleStreams) -> Perturbed:
        with self._dropping(model, x.detach()):
            return self.inner.perturb(model, x, y, threat, random=random)

    def loss(self, model: nn.Module, x: Tensor, perturbed: Perturbed, y: Tensor) -> Losses:
        return self.inner.loss(model, x, perturbed, y)

    @contextmanager
    def _dropping(self, model: nn.Module, x: Tensor) -> Iterator[None]:
        """What is masked, and which attention blocks pass a gradient, is drawn at every pass."""

        def mask_patches(module: nn.Module, inputs: tuple[Tensor]) -> Tensor:
            (x_adv,) = inputs
            if x_adv.shape != x.shape:
                raise UserError("random_dropping: patches are masked only in searches that keep the whole batch")
            height, width = (-(-side // self.patch_size) for side in x.shape[2:])
            shown = (torch.rand(len(x), 1, height, width, device=x.device) < self.keep).to(x.dtype)
            mask = F.interpolate(shown, scale_factor=self.patch_size)[..., : x.shape[2], : x.shape[3]]
            return x + mask * (x_adv - x)

        def drop_gradient(module: nn.Module, inputs: object, output: Tensor) -> Tensor:
            return output if float(torch.rand(())) < self.keep else output.detach()

        with ExitStack() as hooks:
            if self.patches and self.keep < 1:
                hooks.enter_context(model.register_forward_pre_hook(mask_patches))
            if self.attention and self.keep < 1:
                for block in attention_blocks(model).values():
                    hooks.enter_context(block.register_forward_hook(drop_gradient))
            yield

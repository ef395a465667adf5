"""Accuracy on clean images against stability around them."""

from typing import Annotated

import torch
from torch import Tensor, nn

from robustvit.attacks import PGD, Search
from robustvit.core.component import OneOf, component
from robustvit.core.errors import UserError
from robustvit.core.numbers import NonNegative
from robustvit.core.streams import SampleStreams
from robustvit.losses import cross_entropy, kl_divergence
from robustvit.models.modes import attacking
from robustvit.objectives.base import AttackMode, Losses, Perturbed, Smoothing
from robustvit.threats import LpBall


@component("objective", "trades")
class Trades:
    """CE(x, y) + beta KL(p(x) || p(x_adv)), the search ascending the same divergence (Zhang et al. 2019).

    The defaults are the original's. Gowal et al. and Wang et al. start uniformly in the Linf ball (`attack: {start:
    uniform, step: 2/255}`), in the L2 ball as the original but with `step: 2*eps/steps`; both search with
    `attack_mode: train`.
    """

    beta: NonNegative = 6.0
    """6 in the original; 3 for ViTs on CIFAR-10, 5 on CIFAR-100 (Vision Transformers Beat WideResNets)."""
    attack: Annotated[PGD, OneOf("attack", only="pgd")] = PGD(steps=10, step="eps/4", start="normal")  # type: ignore[arg-type]
    """Its loss is the divergence, whatever the field says."""
    label_smoothing: Smoothing = 0.0
    """In the cross-entropy alone."""
    attack_mode: AttackMode = "eval"
    """Of the model during the search."""

    def check(self, model: nn.Module) -> None:
        if self.attack.loss != "ce":
            ignored = f"'{self.attack.loss}' would be ignored; leave it out"
            raise UserError(f"trades.attack.loss: the search ascends the divergence, so {ignored}")

    def perturb(self, model: nn.Module, x: Tensor, y: Tensor, threat: LpBall, *, random: SampleStreams) -> Perturbed:
        if threat.eps == 0:  # before its schedule begins: the divergence is 0, and three of four passes are saved
            return Perturbed(x, attacked=False)
        with attacking(model, self.attack_mode):
            with torch.no_grad():
                clean = model(x)  # once: the weights do not change during the search
            x_adv = self.attack.ascend(
                model, x, threat, lambda logits, rows: kl_divergence(logits, clean[rows]), Search(random)
            )
        return Perturbed(x_adv)

    def loss(self, model: nn.Module, x: Tensor, perturbed: Perturbed, y: Tensor) -> Losses:
        logits = model(x)
        natural = cross_entropy(logits, y, self.label_smoothing)
        if not perturbed.attacked:
            return Losses(natural, logits, {"natural": natural, "stability": 0 * natural}, clean_logits=logits)
        logits_adv = model(perturbed.x_adv)
        stability = kl_divergence(logits_adv, logits)
        parts = {"natural": natural, "stability": stability}
        return Losses(natural + self.beta * stability, logits_adv, parts, clean_logits=logits)

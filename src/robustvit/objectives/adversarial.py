"""Cross-entropy on clean images, the baseline that attacks break, or on attacked images alone."""

from typing import ClassVar

import torch
from torch import Tensor, nn

from robustvit.attacks import PGD, Search
from robustvit.attacks.base import AnyAttack, attack_loss, input_gradient
from robustvit.core.component import component
from robustvit.core.errors import UserError
from robustvit.core.numbers import NonNegative, Positive
from robustvit.core.streams import SampleStreams
from robustvit.losses import cross_entropy
from robustvit.models.modes import attacking
from robustvit.objectives.base import AttackMode, Losses, Perturbed, Smoothing
from robustvit.threats import LpBall


@component("objective", "standard")
class Standard:
    """Cross-entropy on clean images."""

    label_smoothing: Smoothing = 0.0
    """Fraction of the label that is spread over all classes."""

    def perturb(self, model: nn.Module, x: Tensor, y: Tensor, threat: LpBall, *, random: SampleStreams) -> Perturbed:
        return Perturbed(x, attacked=False)

    def loss(self, model: nn.Module, x: Tensor, perturbed: Perturbed, y: Tensor) -> Losses:
        logits = model(x)
        return Losses(cross_entropy(logits, y, self.label_smoothing), logits, clean_logits=logits)


@component("objective", "adversarial")
class Adversarial:
    """PGD-AT (Madry et al. 2018); fast training is `attack: {name: fgsm, start: uniform+1e-5, step: 1.5*eps}`.

    A Light Recipe takes 1 step, and 2 at large eps: `{name: pgd, steps: 2, start: uniform+1e-5, step: 1.5*eps/steps}`.
    A step given as a fraction of eps follows its warm-up; one in pixels (6/255) is constant, as in that paper's code.
    """

    attack: AnyAttack = PGD(steps=10)
    """That makes the images to train on."""
    label_smoothing: Smoothing = 0.0
    """Fraction of the label that is spread over all classes."""
    attack_mode: AttackMode = "eval"
    """Of the model during the search."""

    def perturb(self, model: nn.Module, x: Tensor, y: Tensor, threat: LpBall, *, random: SampleStreams) -> Perturbed:
        if threat.eps == 0:  # before its schedule begins
            return Perturbed(x, attacked=False)
        with attacking(model, self.attack_mode):
            return Perturbed(self.attack(model, x, y, threat, Search(random)))

    def loss(self, model: nn.Module, x: Tensor, perturbed: Perturbed, y: Tensor) -> Losses:
        logits = model(perturbed.x_adv)
        clean = None if perturbed.attacked else logits
        return Losses(cross_entropy(logits, y, self.label_smoothing), logits, clean_logits=clean)


@component("objective", "n_fgsm")
class NoisyFGSM:
    """N-FGSM (de Jorge et al. 2022): one step along the sign of the gradient at a noisy image.

    The sum of noise and step is kept, outside of the ball too, which is what keeps training with a single gradient from
    collapsing; so this is no attack, and no suite takes it. For Linf.
    """

    attacked: ClassVar[bool] = True

    noise: NonNegative = 2.0
    """Largest change of a pixel by the noise, in units of eps."""
    step: Positive = 1.0
    """In units of eps."""
    label_smoothing: Smoothing = 0.0
    """Fraction of the label that is spread over all classes."""
    attack_mode: AttackMode = "eval"
    """Of the model during the search."""

    def perturb(self, model: nn.Module, x: Tensor, y: Tensor, threat: LpBall, *, random: SampleStreams) -> Perturbed:
        if threat.norm != "inf":
            raise UserError(f"recipe.objective: n_fgsm is made for Linf, not {threat}; use adversarial")
        if threat.eps == 0:
            return Perturbed(x, attacked=False)
        noise = random.uniform(x.shape[1:], at="noise", dtype=x.dtype) * 2 - 1
        noisy = x + noise * (self.noise * threat.eps)
        rows = torch.arange(len(x), device=x.device)
        with attacking(model, self.attack_mode):
            gradient, _, _ = input_gradient(model, noisy, rows, attack_loss("ce", y, None))
        return Perturbed((noisy + self.step * threat.eps * gradient.sign()).clamp(0, 1))

    loss = Adversarial.loss

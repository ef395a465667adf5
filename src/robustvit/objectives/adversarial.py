"""Cross-entropy on clean images, the baseline that attacks break, or on attacked images alone."""

from torch import Tensor, nn

from robustvit.attacks import PGD, Search
from robustvit.attacks.base import AnyAttack
from robustvit.core.component import component
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
        with attacking(model, self.attack_mode):
            return Perturbed(self.attack(model, x, y, threat, Search(random)))

    def loss(self, model: nn.Module, x: Tensor, perturbed: Perturbed, y: Tensor) -> Losses:
        logits = model(perturbed.x_adv)
        return Losses(cross_entropy(logits, y, self.label_smoothing), logits)

"""More weight on images that the model gets wrong even before they are attacked."""

from torch import Tensor, nn

from robustvit.attacks import PGD, Search
from robustvit.attacks.base import AnyAttack
from robustvit.core.component import component
from robustvit.core.numbers import NonNegative
from robustvit.core.streams import SampleStreams
from robustvit.losses import boosted_cross_entropy, kl_divergence
from robustvit.models.modes import attacking
from robustvit.objectives.base import AttackMode, Losses, Perturbed
from robustvit.threats import LpBall


@component("objective", "mart")
class Mart:
    """BCE(x_adv, y) + beta KL(p(x) || p(x_adv)) (1 - p_y(x)), searched by cross-entropy (Wang et al. 2020)."""

    beta: NonNegative = 6.0
    """The authors' code; their paper prints 5."""
    attack: AnyAttack = PGD(steps=10, step="eps/4", start="normal")  # type: ignore[arg-type]
    """That makes the images to train on."""
    attack_mode: AttackMode = "eval"
    """Of the model during the search."""

    def perturb(self, model: nn.Module, x: Tensor, y: Tensor, threat: LpBall, *, random: SampleStreams) -> Perturbed:
        with attacking(model, self.attack_mode):
            return Perturbed(self.attack(model, x, y, threat, Search(random)))

    def loss(self, model: nn.Module, x: Tensor, perturbed: Perturbed, y: Tensor) -> Losses:
        logits, logits_adv = model(x), model(perturbed.x_adv)
        boosted = boosted_cross_entropy(logits_adv, y)
        doubt = 1.0000001 - logits.softmax(1).gather(1, y[:, None]).squeeze(1)
        stability = kl_divergence(logits_adv, logits) * doubt
        parts = {"boosted": boosted, "stability": stability}
        return Losses(boosted + self.beta * stability, logits_adv, parts, clean_logits=logits)

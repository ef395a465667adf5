"""Losses per sample: each gives (B,), so that a caller may weigh, mask or pick before the mean."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from robustvit.core.errors import UserError

AttackLoss = Callable[[Tensor, Tensor], Tensor]


def cross_entropy(logits: Tensor, y: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """y: class indices (B,) or probabilities (B, K); smoothing spreads its share over all K classes."""
    return F.cross_entropy(logits, y, reduction="none", label_smoothing=label_smoothing)


def margin(logits: Tensor, y: Tensor) -> Tensor:
    """Largest other logit minus the true one's (Carlini and Wagner 2017): positive where fooled."""
    if y.ndim != 1:
        raise UserError("the margin loss needs class indices (B,), not probabilities: switch off MixUp and CutMix")
    true = logits.gather(1, y[:, None]).squeeze(1)
    others = logits.scatter(1, y[:, None], float("-inf"))
    return others.amax(1) - true


def kl_divergence(logits_adv: Tensor, logits: Tensor) -> Tensor:
    """KL(p || p_adv), summed over the classes (TRADES: Zhang et al. 2019, eq. 3)."""
    return F.kl_div(logits_adv.log_softmax(1), logits.log_softmax(1), reduction="none", log_target=True).sum(1)


def is_fooled(logits: Tensor, y: Tensor) -> Tensor:
    """(B,) whether another class wins; logits that aren't finite fool nobody."""
    return torch.isfinite(logits).all(1) & (logits.argmax(1) != y)


ATTACK_LOSSES: dict[str, AttackLoss] = {"ce": cross_entropy, "cw": margin}
"""What an attack ascends, by the name that suites use."""

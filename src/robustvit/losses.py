"""Losses per sample: each gives (B,), so that a caller may weigh, mask or pick before the mean."""

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from robustvit.core.errors import UserError

AttackLoss = Callable[[Tensor, Tensor], Tensor]


def cross_entropy(logits: Tensor, y: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """y: class indices (B,) or probabilities (B, K); smoothing distributes its mass over all K classes."""
    return F.cross_entropy(logits, y, reduction="none", label_smoothing=label_smoothing)


def _check_indices(y: Tensor, loss: str) -> None:
    if y.ndim != 1:
        raise UserError(f"the {loss} loss needs class indices (B,), not probabilities: switch off MixUp and CutMix")


def margin(logits: Tensor, y: Tensor) -> Tensor:
    """Largest other logit minus the true one's (Carlini and Wagner 2017): positive where fooled."""
    _check_indices(y, "margin")
    true = logits.gather(1, y[:, None]).squeeze(1)
    others = logits.scatter(1, y[:, None], float("-inf"))
    return others.amax(1) - true


def probability_margin(logits: Tensor, y: Tensor) -> Tensor:
    """Largest other probability minus the true one's (GAMA: Sriramanan et al. 2020; PMA: Xie et al. 2025)."""
    return margin(logits.softmax(1), y)


def dlr(logits: Tensor, y: Tensor) -> Tensor:
    """Difference of logits ratio (Croce and Hein 2020): the margin, made blind to the logits' shift and scale."""
    _check_indices(y, "DLR")
    if logits.shape[1] < 3:
        raise UserError(f"the DLR loss needs at least 3 classes, the model has {logits.shape[1]}: use cw")
    first, second, third = logits.topk(3, dim=1).values.unbind(1)
    true = logits.gather(1, y[:, None]).squeeze(1)
    other = torch.where(logits.argmax(1) == y, second, first)
    return (other - true) / (first - third + 1e-12)


def targeted_dlr(logits: Tensor, y: Tensor, target: Tensor) -> Tensor:
    """The target's lead over the true class, on the same scale (Croce and Hein 2020)."""
    if logits.shape[1] < 4:
        raise UserError(f"the targeted DLR loss needs at least 4 classes, the model has {logits.shape[1]}: use cw")
    first, _, third, fourth = logits.topk(4, dim=1).values.unbind(1)
    lead = logits.gather(1, target[:, None]) - logits.gather(1, y[:, None])
    return lead.squeeze(1) / (first - 0.5 * (third + fourth) + 1e-12)


def kl_divergence(logits_adv: Tensor, logits: Tensor) -> Tensor:
    """KL(p || p_adv), summed over the classes (TRADES: Zhang et al. 2019, eq. 3)."""
    return F.kl_div(logits_adv.log_softmax(1), logits.log_softmax(1), reduction="none", log_target=True).sum(1)


def boosted_cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """-log p_y - log(1 - the largest other p), the second term kept finite as in MART's code (Wang et al. 2020)."""
    if y.ndim != 1:
        raise UserError("MART needs class indices (B,), not probabilities: switch off MixUp and CutMix")
    others = logits.softmax(1).scatter(1, y[:, None], 0.0).amax(1)
    return F.cross_entropy(logits, y, reduction="none") - torch.log(1.0001 - others + 1e-12)


def is_fooled(logits: Tensor, y: Tensor) -> Tensor:
    """(B,) whether another class wins; non-finite logits never count as fooled."""
    return torch.isfinite(logits).all(1) & (logits.argmax(1) != y)


def predicted_classes(logits: Tensor) -> Tensor:
    """(B,) -1 where the logits aren't finite."""
    return torch.where(torch.isfinite(logits).all(1), logits.argmax(1), -1)


def is_correct(logits: Tensor, y: Tensor) -> Tensor:
    """(B,) whether the true class wins; non-finite logits are never right."""
    return predicted_classes(logits) == y


LossName = Literal["ce", "cw", "pm", "dlr"]
ATTACK_LOSSES: dict[LossName, AttackLoss] = {"ce": cross_entropy, "cw": margin, "pm": probability_margin, "dlr": dlr}
"""What an attack ascends, by the name that suites use."""

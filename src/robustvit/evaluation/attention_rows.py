"""Attention that has become a choice of one key: its softmax passes hardly any gradient to queries and keys."""

import math

import torch
from torch import Tensor, nn

from robustvit.core.errors import UserError
from robustvit.models.attention_probe import ScoreObserver, probing

ONE_HOT = 0.999
"""A row with a larger weight than this is called one-hot."""
ADVICE = (
    "a saturated softmax hides gradients, and attacks along them stop early: report the worst case over suite "
    "'autoattack+aas' and restarts (apgd-ce-x5), and take it as an upper bound"
)


def one_hot_rows(model: nn.Module, x: Tensor) -> float | None:
    """The fraction of attention rows, of all blocks, heads and queries, that are one-hot; None: no attention to see.

    A row with fewer than two keys, such as that of a window of one patch, doesn't count.
    """
    counts = {"rows": 0, "one-hot": 0}

    def see(block: int, scores: Tensor, masked: Tensor) -> None:
        free = (~masked).sum(-1) > 1
        largest = scores.amax(-1) - scores.logsumexp(-1)
        counts["rows"] += int(free.sum())
        counts["one-hot"] += int((free & (largest > math.log(ONE_HOT))).sum())

    try:
        with torch.no_grad(), probing(model, ScoreObserver(see)):
            model(x)
    except UserError:  # no attention, or none that can be reached
        return None
    return counts["one-hot"] / counts["rows"] if counts["rows"] else None

"""Masks of attention as numbers that are added to its scores."""

import torch
from torch import Tensor


def as_added(mask: Tensor, scores: Tensor) -> Tensor:
    """A block's own mask as it was added to the scores: one for each window, or for all."""
    mask = as_numbers(mask, scores)
    if mask.ndim == 3 and scores.ndim == 4:  # (windows, N, N) against (images * windows, heads, N, N)
        mask = mask.repeat(len(scores) // len(mask), 1, 1)[:, None]
    return mask.to(scores.dtype)


def as_numbers(mask: Tensor, scores: Tensor) -> Tensor:
    """What is added: of a boolean mask, nothing where it is true."""
    if mask.dtype == torch.bool:
        return torch.zeros(mask.shape, dtype=scores.dtype, device=mask.device).masked_fill(~mask, -torch.inf)
    return mask

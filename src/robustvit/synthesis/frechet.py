"""Distances between sets of features: Frechet distance, precision and recall."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

_BLOCK = 1024
"""Rows compared at once."""


@dataclass(frozen=True)
class Moments:
    """Mean and covariance of features, in float64."""

    count: int
    mean: np.ndarray
    covariance: np.ndarray

    @classmethod
    def of(cls, features: np.ndarray) -> "Moments":
        """Of (N, D) numbers."""
        values = np.asarray(features, np.float64)
        mean = values.mean(0)
        centered = values - mean
        return cls(len(values), mean, centered.T @ centered / (len(values) - 1))


def frechet_distance(first: Moments, second: Moments) -> float:
    """The squared distance of Wasserstein between two Gaussians: |m1 - m2|^2 + tr(C1 + C2 - 2 (C1 C2)^(1/2))."""
    values, vectors = np.linalg.eigh(first.covariance)
    root = (vectors * np.sqrt(values.clip(0))) @ vectors.T
    # C1 C2 has the eigenvalues of this symmetric matrix, whose square root never leaves the real numbers
    mixed = np.linalg.eigvalsh(root @ second.covariance @ root)
    spread = np.trace(first.covariance) + np.trace(second.covariance) - 2 * np.sqrt(mixed.clip(0)).sum()
    return float(((first.mean - second.mean) ** 2).sum() + max(spread, 0.0))


def precision_and_recall(real: Tensor, generated: Tensor, neighbors: int = 3) -> tuple[float, float]:
    """Kynkäänniemi et al. 2019: which fraction of each set lies among the other, as its nearest neighbors show."""
    return _fraction_inside(real, generated, neighbors), _fraction_inside(generated, real, neighbors)


def _fraction_inside(around: Tensor, points: Tensor, neighbors: int) -> float:
    """Of the points, inside a ball around another set's point that reaches to its own n-th neighbor."""
    # the first of them is the point itself
    radii = [torch.cdist(rows, around).kthvalue(neighbors + 1, 1).values for rows in torch.split(around, _BLOCK)]
    radius = torch.cat(radii)
    inside = [(torch.cdist(rows, around) <= radius).any(1) for rows in torch.split(points, _BLOCK)]
    return float(torch.cat(inside).float().mean())

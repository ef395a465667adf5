"""Similarities of layers from sums over images, so that no features need be kept.

In float64: sums of float32 products would be off by more than layers differ.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from robustvit.analysis.streaming import State


@dataclass(frozen=True)
class CorrelationSums:
    """Pearson correlations of layers of the same shape, over all entries of all images, and of each image by itself."""

    layers: int
    state: State = field(init=False)

    def __post_init__(self) -> None:
        square = (self.layers, self.layers)
        arrays = {"products": np.zeros(square), "sums": np.zeros(self.layers), "count": np.zeros(1)}
        of_images = {"of_images": np.zeros(square), "images": np.zeros(1), "center": np.zeros(self.layers)}
        object.__setattr__(self, "state", {**arrays, **of_images})

    def add(self, features: Tensor) -> None:
        """(B, layers, entries) float64, changed in place."""
        state, entries = self.state, features.shape[2]
        if not state["count"][0]:  # far from zero, the difference of large sums would be lost
            state["center"][:] = features.mean((0, 2)).cpu().numpy()
        features -= torch.from_numpy(state["center"]).to(features.device)[:, None]
        products, sums = features @ features.mT, features.sum(2)  # (B, layers, layers), (B, layers)
        state["products"] += products.sum(0).cpu().numpy()
        state["sums"] += sums.sum(0).cpu().numpy()
        state["count"] += len(features) * entries
        covariance = (products - sums[:, :, None] * sums[:, None] / entries).cpu().numpy()
        state["of_images"] += np.nan_to_num(_as_correlation(covariance)).sum(0)
        state["images"] += len(features)

    def correlation(self) -> np.ndarray:
        """(layers, layers) absolute values."""
        covariance = self.state["products"] - np.outer(self.state["sums"], self.state["sums"]) / self.state["count"]
        return _as_correlation(covariance)

    def mean_of_images(self) -> np.ndarray:
        """Over the absolute values of each image's own correlation; 0 where a layer is constant."""
        mean: np.ndarray = self.state["of_images"] / self.state["images"]
        return mean


def _as_correlation(covariance: np.ndarray) -> np.ndarray:
    deviation = np.sqrt(np.clip(np.einsum("...ll->...l", covariance), 0, None))
    with np.errstate(invalid="ignore", divide="ignore"):
        absolute: np.ndarray = np.abs(covariance / (deviation[..., :, None] * deviation[..., None, :]))
    return absolute


@dataclass(frozen=True)
class KernelSums:
    """Linear CKA of layers of any shape, from products of kernels of image blocks: exact, whatever the blocks."""

    layers: int
    images: int
    state: State = field(init=False)

    def __post_init__(self) -> None:
        square = (self.layers, self.layers)
        object.__setattr__(self, "state", {"products": np.zeros(square), "rows": np.zeros((self.layers, self.images))})

    def add(self, first: Sequence[Tensor], second: Sequence[Tensor], at: tuple[int, int]) -> None:
        """Features of two blocks of images by layer, (B, entries) each; `at`: where the blocks begin."""
        same = at[0] == at[1]
        kernels = torch.stack([one @ other.mT for one, other in zip(first, second, strict=True)])  # (layers, B, B')
        flat = kernels.flatten(1)
        self.state["products"] += (1 if same else 2) * (flat @ flat.mT).cpu().numpy()
        rows, columns = kernels.sum(2).cpu().numpy(), kernels.sum(1).cpu().numpy()
        self.state["rows"][:, at[0] : at[0] + rows.shape[1]] += rows
        if not same:
            self.state["rows"][:, at[1] : at[1] + columns.shape[1]] += columns

    def cka(self) -> np.ndarray:
        """(layers, layers); the kernels are centered here."""
        rows, total = self.state["rows"], self.state["rows"].sum(1)
        centered = self.state["products"] - 2 * rows @ rows.T / self.images + np.outer(total, total) / self.images**2
        return _normalized(centered)


@dataclass(frozen=True)
class MinibatchKernelSums:
    """Linear CKA from the unbiased HSIC of minibatches (Nguyen et al. 2021): an estimate, by one pass."""

    layers: int
    state: State = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "state", {"products": np.zeros((self.layers, self.layers))})

    def add(self, features: Sequence[Tensor]) -> None:
        """(B, entries) of each layer, of at least 4 images."""
        kernels = torch.stack([one @ one.mT for one in features])
        kernels -= torch.diag_embed(torch.diagonal(kernels, dim1=1, dim2=2))
        count, flat, rows = kernels.shape[1], kernels.flatten(1), kernels.sum(2)
        total = rows.sum(1)
        hsic = flat @ flat.mT + torch.outer(total, total) / ((count - 1) * (count - 2))
        hsic -= 2 * rows @ rows.mT / (count - 2)
        self.state["products"] += (hsic / (count * (count - 3))).cpu().numpy()

    def cka(self) -> np.ndarray:
        return _normalized(self.state["products"])


def _normalized(products: np.ndarray) -> np.ndarray:
    size = np.sqrt(np.clip(np.diag(products), 0, None))
    with np.errstate(invalid="ignore", divide="ignore"):
        normalized: np.ndarray = products / np.outer(size, size)
    return normalized

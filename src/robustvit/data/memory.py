"""Images that are already in memory, or in somebody's torch Dataset."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from robustvit.core.errors import UserError, first_line
from robustvit.core.streams import digest


@dataclass(frozen=True)
class InMemory:
    """Tensors, or memory maps that behave like them: (N, 3, H, W) and (N,)."""

    images: Tensor
    labels: Tensor
    title: str
    num_classes: int | None = None
    class_names: Sequence[str] | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        return self.images[indices], self.labels[indices]


@dataclass(frozen=True)
class FromTorch:
    """A map-style torch Dataset of (image, label)."""

    dataset: Any
    title: str
    num_classes: int | None = None

    def __len__(self) -> int:
        return len(self.dataset)

    def take(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        pairs = [self.dataset[int(index)] for index in indices]
        if not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in pairs):
            raise UserError(f"{self.title}: its items must be pairs (image, label)")
        images = [_image_tensor(image) for image, _ in pairs]
        if len({image.shape for image in images}) > 1:
            raise UserError(f"{self.title}: its images differ in size; resize them in its transform")
        return torch.stack(images), torch.tensor([int(label) for _, label in pairs], dtype=torch.int64)


def from_pair(x: Any, y: Any) -> InMemory:
    """Tensors or arrays as given: floats stay as they are, so that the attack starts from these very points."""
    try:
        images, labels = torch.as_tensor(x), torch.as_tensor(y)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"data: a pair of tensors or arrays (x, y); {first_line(error)}") from None
    if images.ndim != 4 or images.shape[1] != 3:
        raise UserError(f"data: images must have the shape (N, 3, H, W), not {tuple(images.shape)}")
    if labels.shape != images.shape[:1]:
        raise UserError(f"data: {len(images)} images need labels of shape ({len(images)},), not {tuple(labels.shape)}")
    if labels.is_floating_point() or labels.dtype == torch.bool:
        raise UserError(f"data: labels must be class indices, not {labels.dtype}")
    if not (images.is_floating_point() or images.dtype == torch.uint8):
        raise UserError(f"data: images must be uint8 or floats in [0, 1], not {images.dtype}")
    return InMemory(images, labels.long(), f"{len(images)} images given as tensors ({digest(*labels.tolist()):016x})")


def from_torch(dataset: Any) -> FromTorch:
    if isinstance(dataset, torch.utils.data.IterableDataset):
        raise UserError("data: an IterableDataset can't be read at random; give a map-style Dataset or a pair (x, y)")
    classes = getattr(dataset, "classes", None)
    return FromTorch(dataset, type(dataset).__name__, len(classes) if classes is not None else None)


def _image_tensor(image: Any) -> Tensor:
    if isinstance(image, Tensor):
        pixels = image
    else:
        array = np.asarray(image)
        pixels = torch.from_numpy(array if array.ndim == 3 else array[..., None].repeat(3, -1)).permute(2, 0, 1)
    if pixels.ndim != 3 or pixels.shape[0] != 3:
        raise UserError(f"data: an image must have the shape (3, H, W), not {tuple(pixels.shape)}")
    return pixels

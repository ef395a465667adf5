"""What users hand in as data: a name, a path, a pair of tensors, a torch Dataset."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from robustvit.core.component import build, registered
from robustvit.core.errors import UserError, first_line, nearest, short_repr
from robustvit.core.files import is_folder
from robustvit.data.arrays import InMemory
from robustvit.data.base import SPLIT_NAMES, Dataset, Images, Split, as_pixels, choose_images
from robustvit.data.shards import is_shards


def dataset_by_name(text: str) -> Dataset:
    """A registered name, a folder of pictures, an .npz or .npy file, or tar shards by a pattern."""
    if text in registered("data"):
        kind = None
    elif text.endswith((".npz", ".npy")):
        kind = "arrays"
    elif is_folder(Path(text)):
        kind = "folder"
    elif is_shards(text):
        kind = "shards"
    else:
        tried = "neither a folder nor an .npz or .npy file nor tar shards nor a known name"
        raise UserError(f"no data '{text}': {tried}{nearest(text, list(registered('data')))}")
    return cast(Dataset, build("data", {"name": text} if kind is None else {"name": kind, "path": text}))


def images_from(data: Any, split: Split = "test") -> Images:
    """Random access to whatever was handed in."""
    if split not in SPLIT_NAMES:
        raise UserError(f"split: {' or '.join(SPLIT_NAMES)}, not {short_repr(split)}")
    if isinstance(data, str | Path):
        return dataset_by_name(str(data)).open(split)
    if isinstance(data, Mapping):
        data = build("data", data)
    if hasattr(data, "has_splits") and hasattr(data, "open"):
        return cast(Dataset, data).open(split)
    if isinstance(data, tuple | list) and len(data) == 2:
        return _from_pair(*data)
    if isinstance(data, torch.utils.data.IterableDataset):
        raise UserError("data: an IterableDataset can't be read at random; give a map-style Dataset or a pair (x, y)")
    if isinstance(data, torch.utils.data.Dataset):
        classes = getattr(data, "classes", None)
        return FromTorch(data, type(data).__name__, None if classes is None else len(classes), classes)
    if not (hasattr(data, "take") and hasattr(data, "num_classes")):
        expected = "a name, a path, a map with 'name', a pair (x, y) or a torch Dataset"
        raise UserError(f"data: {expected}, not {type(data).__name__}")
    return cast(Images, data)


def load_data(data: Any, images: int | None = None, *, split: Split = "test", seed: int = 0) -> tuple[Tensor, Tensor]:
    """Images (n, 3, H, W) as floats in [0, 1] and labels (n,), all or so many at random: `rv.load_data("digits", 64)`.

    `evaluate(..., images=n, seed=seed)` takes the same images.
    """
    opened = images_from(data, split)
    x, y = opened.take(choose_images(opened, images, seed)[0])
    return as_pixels(x), y


@dataclass(frozen=True)
class FromTorch:
    """A map-style torch Dataset of (image, label)."""

    dataset: Any
    title: str
    num_classes: int | None = None
    class_names: Sequence[str] | None = None

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


def _from_pair(x: Any, y: Any) -> InMemory:
    """Tensors or arrays as given: floats stay as they are, so that the attack starts from these very points."""
    try:
        images, labels = torch.as_tensor(x), torch.as_tensor(y)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"data: a pair of tensors or arrays (x, y); {first_line(error)}") from None
    if images.layout != torch.strided or labels.layout != torch.strided:
        raise UserError("data: dense tensors are expected, not sparse ones; give x.to_dense()")
    if images.is_meta or labels.is_meta:
        raise UserError("data: tensors of the meta device hold no numbers; give tensors of the cpu or an accelerator")
    if images.ndim != 4 or images.shape[1] != 3:
        raise UserError(f"data: images must have the shape (N, 3, H, W), not {tuple(images.shape)}")
    if labels.shape != images.shape[:1]:
        raise UserError(f"data: {len(images)} images need labels of shape ({len(images)},), not {tuple(labels.shape)}")
    if labels.is_floating_point() or labels.dtype == torch.bool:
        raise UserError(f"data: labels must be class indices, not {labels.dtype}")
    if not (images.is_floating_point() or images.dtype == torch.uint8):
        raise UserError(f"data: images must be uint8 or floats in [0, 1], not {images.dtype}")
    return InMemory(images, labels.long(), f"{len(images)} images given as tensors")


def _image_tensor(image: Any) -> Tensor:
    if not isinstance(image, Tensor):
        array = np.array(image)  # a copy: torch warns of memory that can't be written, as Pillow's
        image = torch.from_numpy(array if array.ndim == 3 else array[..., None].repeat(3, -1)).permute(2, 0, 1)
    if image.is_meta:
        raise UserError("data: tensors of the meta device hold no numbers; give tensors of the cpu or an accelerator")
    if image.ndim != 3 or image.shape[0] != 3:
        raise UserError(f"data: an image must have the shape (3, H, W), not {tuple(image.shape)}")
    return cast(Tensor, image)

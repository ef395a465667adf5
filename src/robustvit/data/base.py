"""The one internal type: images with random access. Sharding, packing and mid-epoch resume all need it."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Protocol

import torch
from torch import Tensor

from robustvit.core.component import OneOf
from robustvit.core.errors import UserError, short_repr
from robustvit.core.streams import seeded_subset

Split = Literal["train", "test"]
SPLIT_NAMES: dict[Split, tuple[str, ...]] = {"train": ("train",), "test": ("test", "val", "validation")}
"""What folders and shards of a split are called; the first that is there counts."""
HoldOutRule = Literal["random", "first"]
Box = tuple[int, int, int, int]
"""Top, left, height, width."""


class Images(Protocol):
    """`take(indices)` gives images (n, 3, H, W), uint8 or floats in [0, 1], and labels (n,)."""

    @property
    def title(self) -> str:
        """What a result says it was measured on."""

    @property
    def num_classes(self) -> int | None:
        """None where only the labels seen tell."""

    def __len__(self) -> int: ...

    def take(self, indices: Tensor) -> tuple[Tensor, Tensor]: ...


@dataclass(frozen=True)
class Cut:
    """What is cut out of whole pictures: a box for each row, height and width of its picture, then resized."""

    box: Callable[[int, int, int], Box]
    interpolation: str


def has_whole(images: Images) -> bool:
    """Whether they are made smaller when they are taken, and `take(indices, cut)` gives a part of each instead."""
    return bool(getattr(images, "has_whole", False))


def take_cut(images: Any, indices: Tensor, cut: Cut | None) -> tuple[Tensor, Tensor]:
    taken: tuple[Tensor, Tensor] = images.take(indices, cut) if cut and has_whole(images) else images.take(indices)
    return taken


class Dataset(Protocol):
    """A data set that a recipe can name; reading starts when a split is opened."""

    @property
    def has_splits(self) -> bool:
        """Whether train and test are different images."""

    def open(self, split: Split) -> Images: ...


AnyDataset = Annotated[Dataset, OneOf("data")]


@dataclass(frozen=True)
class Subset:
    """Some of the images, in the order given."""

    of: Images
    indices: Tensor
    title: str
    relabeled: Tensor | None = None
    """(N,) new labels, where classes were chosen and numbered anew."""
    chosen_classes: int | None = None
    chosen_names: tuple[str, ...] | None = None
    """Of the chosen classes."""

    @property
    def class_names(self) -> tuple[str, ...] | None:
        return class_names(self.of) if self.chosen_classes is None else self.chosen_names

    @property
    def num_classes(self) -> int | None:
        return self.of.num_classes if self.chosen_classes is None else self.chosen_classes

    def __len__(self) -> int:
        return len(self.indices)

    @property
    def has_whole(self) -> bool:
        return has_whole(self.of)

    def take(self, indices: Tensor, cut: Cut | None = None) -> tuple[Tensor, Tensor]:
        images, labels = take_cut(self.of, self.indices[indices], cut)
        return images, labels if self.relabeled is None else self.relabeled[indices]

    def describe(self, indices: Tensor) -> list[str] | None:
        lines = _describe(self.of, self.indices[indices])
        if lines is None or self.relabeled is None:
            return lines
        return [f"{line} as {label}" for line, label in zip(lines, self.relabeled[indices].tolist(), strict=True)]


def choose_images(images: Images, count: int | None, seed: int) -> tuple[Tensor, str]:
    """Indices of the images asked for, and the rule that chose them."""
    total = len(images)
    if total == 0:
        raise UserError(f"{images.title}: holds no images")
    if count is None or count == total:
        return torch.arange(total), f"all {total}"
    if type(count) is not int or not 1 <= count <= total:
        raise UserError(
            f"images: a whole number from 1 to {total} ({images.title} has so many), not {short_repr(count)}"
        )
    return seeded_subset(total, count, seed, "images"), f"{count} of {total} at random, seed {seed}"


def hold_out(images: Images, count: int, seed: int, rule: HoldOutRule = "random") -> tuple[Subset, Subset]:
    """The images left for training and `count` held out, by a seeded rule or as the first ones."""
    if not 0 <= count < len(images):
        raise UserError(f"validation.hold_out: {count} images can't be held out of {len(images)}")
    held = torch.arange(count) if rule == "first" else seeded_subset(len(images), count, seed, "hold-out")
    kept = torch.ones(len(images), dtype=torch.bool)
    kept[held] = False
    title = f"{images.title}, {'first ' if rule == 'first' else ''}{count} held out"
    return Subset(images, kept.nonzero().squeeze(1), images.title), Subset(images, held, title)


def as_pixels(images: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Floats in [0, 1] from uint8; floats only change their precision."""
    return images.to(dtype) / 255 if images.dtype == torch.uint8 else images.to(dtype)


def check_labels(y: Tensor, num_classes: int, title: str) -> None:
    wrong = y[(y < 0) | (y >= num_classes)]
    if len(wrong):
        allowed = f"{num_classes} classes (0 to {num_classes - 1})"
        raise UserError(f"{title}: label {wrong[0]} is outside the model's {allowed}")


def class_names(images: Images) -> tuple[str, ...] | None:
    """By class; None where the data has no names."""
    names = getattr(images, "class_names", None)
    return None if names is None else tuple(map(str, names))


def known_labels(images: Images, indices: Tensor) -> Tensor | None:
    """Labels without a single pixel being read; None where only reading tells."""
    if isinstance(images, Subset) and images.relabeled is None:
        return known_labels(images.of, images.indices[indices])
    known = images.relabeled if isinstance(images, Subset) else getattr(images, "labels", None)
    return None if known is None else torch.as_tensor(known[indices.numpy()]).long()


def data_fingerprint(images: Images, indices: Tensor) -> str:
    """Which images are meant: every pixel and label of them, or, of files, their names, sizes and times."""
    lines = _describe(images, indices)
    if lines is None:
        return content_fingerprint(images, indices)
    return hashlib.sha256("\n".join([f"{len(images)} images", *lines]).encode()).hexdigest()


def content_fingerprint(images: Images, indices: Tensor) -> str:
    """Every pixel and label of these images."""
    hashed = hashlib.sha256(f"{len(images)} images".encode())
    for chunk in torch.split(indices, 1024):
        for tensor in (chunk, *images.take(chunk)):
            hashed.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return hashed.hexdigest()


def _describe(images: Images, indices: Tensor) -> list[str] | None:
    """A line for each image that tells its content without reading it; None where only the pixels tell."""
    describe = getattr(images, "describe", None)
    return None if describe is None else describe(indices)

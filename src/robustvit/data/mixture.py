"""Which images each step takes: real and generated ones, by a ratio that holds in every batch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from robustvit.core.streams import seeded_order, seeded_places
from robustvit.data.base import Cut, Images, as_pixels, check_labels, take_cut

# An image's id is its index, and its higher bits distinguish other rows of the same epoch.
GENERATED = 1 << 32
COPY = 1 << 33
AGAIN = 1 << 40

CutOf = Callable[[Tensor], Cut]
"""What is cut out of the pictures of these ids."""

_order = lru_cache(maxsize=2)(seeded_order)  # a batch may begin in one order and end in the next


class Batch(NamedTuple):
    images: Tensor
    """(B, 3, H, W), uint8 or floats in [0, 1]."""
    y: Tensor
    """(B,) class indices, or (B, K) probabilities where images were mixed."""
    ids: Tensor
    """(B,) what the rows' streams are called by."""

    @property
    def is_generated(self) -> Tensor:
        return (self.ids & GENERATED) > 0

    def take(self, rows: Tensor) -> "Batch":
        return Batch(*(part[rows] for part in self))


def joined(parts: Sequence[Batch]) -> Batch:
    return Batch(*(torch.cat(tensors) for tensors in zip(*parts, strict=True)))


@dataclass(frozen=True)
class Mixture:
    """A sequence of batches, each known by its step alone.

    An epoch is as many steps as the real images fill batches, whatever fraction is generated. Without generated images
    every epoch has an order of its own, and what fills no batch is left out. With them the last batch is filled up: one
    order of all real images follows the other without a gap, and the generated ones likewise, so that within a set each
    is used equally often.
    """

    real: Images
    batch_size: int
    num_classes: int
    seed: int = 0
    phase: str = "main"
    generated: Images | None = None
    ratio: float = 0.0
    """Fraction of generated images: exact over time, and in every batch to less than one image."""

    @property
    def steps_per_epoch(self) -> int:
        whole, rest = divmod(len(self.real), self.batch_size)
        return max(1, whole + (1 if rest and self._fraction else 0))

    @cached_property
    def _fraction(self) -> Fraction:
        return Fraction(self.ratio).limit_denominator(1_000_000) if self.generated is not None else Fraction(0)

    @property
    def rows(self) -> int:
        """Of a batch."""
        return self.batch_size if self._fraction else min(self.batch_size, len(self.real))

    def take(self, step: int, rows: Tensor | None = None, cut: CutOf | None = None) -> Batch:
        """A batch, or these sorted rows of it; real images come first, cut out if asked."""
        rows = torch.arange(self.rows) if rows is None else rows
        places = [at * self.rows for at in (step - step % self.steps_per_epoch, step, step + 1)]
        made = [int(count * self._fraction) for count in places]  # generated ones among them
        real = [count - generated for count, generated in zip(places, made, strict=True)]
        count = real[2] - real[1]
        parts = []
        if bool((rows < count).any()):
            parts.append(self._read(self.real, False, real, rows[rows < count], cut))
        if self.generated is not None and bool((rows >= count).any()):
            parts.append(self._read(self.generated, True, made, rows[rows >= count] - count, None))
        if 0 < count < self.rows and self._kinds_differ:
            parts = [part._replace(images=as_pixels(part.images)) for part in parts]
        return joined(parts)

    @cached_property
    def _kinds_differ(self) -> bool:
        """Whether real and generated images are stored as different types of numbers."""
        first = torch.tensor([0])
        return self.generated is not None and self.real.take(first)[0].dtype != self.generated.take(first)[0].dtype

    def _read(self, images: Images, generated: bool, begins: list[int], rows: Tensor, cut: CutOf | None) -> Batch:
        """Some rows in an endless sequence of passes; `begins`: where the epoch and where the batch begins."""
        length = len(images) if self._fraction else self.steps_per_epoch * self.rows
        passes, places = (begins[1] + rows) // length, (begins[1] + rows) % length
        indices = torch.empty_like(rows)
        for number in set(passes.tolist()):
            now = passes == number
            if generated:
                indices[now] = seeded_places(places[now], length, self.seed, self.phase, "generated", number)
            else:
                indices[now] = _order(len(images), self.seed, self.phase, "order", number)[places[now]]
        ids = indices + (passes - begins[0] // length) * AGAIN + generated * GENERATED
        pixels, y = take_cut(images, indices, None if cut is None else cut(ids))
        check_labels(y, self.num_classes, images.title)
        return Batch(pixels, y, ids)

"""Which images each step takes: real ones beside generated ones, by a ratio that holds in every batch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from robustvit.core.streams import seeded_order, seeded_places
from robustvit.data.base import Cut, Images, WholePictures, as_pixels, check_labels

# An image's id is its index, and above that what else tells two rows of one epoch apart.
GENERATED = 1 << 32
COPY = 1 << 33
AGAIN = 1 << 40

CutOf = Callable[[Tensor], Cut]
"""What is cut out of the pictures of these ids."""

_order = lru_cache(maxsize=2)(seeded_order)  # a batch may begin in one order and end in the next


@dataclass(frozen=True)
class Mixture:
    """A sequence of batches, each known by its step alone.

    An epoch is as many steps as the real images fill batches, whatever share is generated. Without generated images
    every epoch has an order of its own, and what fills no batch is left out. With them the last batch is filled up: one
    order of all real images follows the other without a gap, and the generated ones likewise, so that within a set each
    is seen equally often.
    """

    real: Images
    batch_size: int
    num_classes: int
    seed: int = 0
    phase: str = "main"
    generated: Images | None = None
    ratio: float = 0.0
    """Share of generated images: exact over time, and in every batch to less than one image."""

    @property
    def steps_per_epoch(self) -> int:
        whole, rest = divmod(len(self.real), self.batch_size)
        return max(1, whole + (1 if rest and self._share else 0))

    @cached_property
    def _share(self) -> Fraction:
        return Fraction(self.ratio).limit_denominator(1_000_000) if self.generated is not None else Fraction(0)

    @property
    def has_whole(self) -> bool:
        """Whether parts of the real images can be cut out of whole pictures."""
        return isinstance(self.real, WholePictures) and self.real.has_whole

    @property
    def rows(self) -> int:
        """Of a batch."""
        return self.batch_size if self._share else min(self.batch_size, len(self.real))

    def take(self, step: int, rows: Tensor | None = None, cut: "CutOf | None" = None) -> tuple[Tensor, Tensor, Tensor]:
        """Images, labels and ids of a batch, or of these rows of it; real ones come first, cut out where so asked.

        `rows` are sorted.
        """
        places = [at * self.rows for at in (step - step % self.steps_per_epoch, step, step + 1)]
        made = [int(count * self._share) for count in places]  # generated ones among them
        real = [count - generated for count, generated in zip(places, made, strict=True)]
        count = real[2] - real[1]
        rows = torch.arange(self.rows) if rows is None else rows
        parts = []
        if bool((rows < count).any()):
            length = len(self.real) if self._share else self.steps_per_epoch * self.rows
            indices, ids = _pass_by_pass(real, length, self._real_index)
            chosen = rows[rows < count]
            parts.append(self._read(self.real, indices[chosen], ids[chosen], cut))
        if self.generated is not None and bool((rows >= count).any()):
            indices, ids = _pass_by_pass(made, len(self.generated), self._generated_index)
            chosen = rows[rows >= count] - count
            parts.append(self._read(self.generated, indices[chosen], ids[chosen] + GENERATED))
        images, labels, names = zip(*parts, strict=True)
        if 0 < count < self.rows and self._kinds_differ:
            images = tuple(as_pixels(part) for part in images)
        return torch.cat(images), torch.cat(labels), torch.cat(names)

    @cached_property
    def _kinds_differ(self) -> bool:
        """Whether real and generated images are stored as different types of numbers."""
        first = torch.tensor([0])
        return self.generated is not None and self.real.take(first)[0].dtype != self.generated.take(first)[0].dtype

    def _read(
        self, images: Images, indices: Tensor, ids: Tensor, cut: "CutOf | None" = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        if cut is not None and isinstance(images, WholePictures):
            pixels, y = images.take_cut(indices, cut(ids))
        else:
            pixels, y = images.take(indices)
        check_labels(y, self.num_classes, images.title)
        return pixels, y, ids

    def _real_index(self, number: int, places: Tensor) -> Tensor:
        return _order(len(self.real), self.seed, self.phase, "order", number)[places]

    def _generated_index(self, number: int, places: Tensor) -> Tensor:
        assert self.generated is not None
        return seeded_places(places, len(self.generated), self.seed, self.phase, "generated", number)


def _pass_by_pass(rows: Sequence[int], length: int, index: Callable[[int, Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """Indices and ids in an endless sequence of passes; `rows`: where the epoch began, the batch begins and ends."""
    epoch, begin, end = rows
    numbers = torch.arange(begin, end)
    passes, places = numbers // length, numbers % length
    indices = [index(one, places[passes == one]) for one in range(begin // length, (end - 1) // length + 1)]
    found = torch.cat(indices)
    return found, found + (passes - epoch // length) * AGAIN

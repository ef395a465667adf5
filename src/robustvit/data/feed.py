"""What a training step gets: images by the number of the step, augmented and mixed, made ahead by workers.

A batch depends on (seed, phase, step) alone. Nothing is remembered between two of them, so any worker may make any one,
and a resumed run asks for the steps that are left.
"""

import signal
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, Protocol, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from robustvit.core.errors import UserError, first_line
from robustvit.core.streams import SampleStreams, sample_streams
from robustvit.data.augment.base import Augmentation, Cropping, scaled
from robustvit.data.augment.mixing import Mixing
from robustvit.data.base import Cut, as_pixels, has_whole
from robustvit.data.mixture import COPY, Batch as Batch, Mixture, joined

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Feed(Protocol[T_co]):
    """Batches by the number of their step."""

    @property
    def steps_per_epoch(self) -> int: ...

    def __len__(self) -> int: ...

    def __getitem__(self, step: int) -> T_co: ...


@dataclass(frozen=True)
class Batches:
    """`batches[step]`: every batch of a phase."""

    mixture: Mixture
    epochs: int
    augmentation: Augmentation | None = None
    mixing: Mixing | None = None
    intensity: Callable[[float], float] | None = None
    """How strong augmentation and mixing are, by progress in [0, 1]."""
    repeats: int = 0
    """0: every image once, augmented; else the batch as it is, and so many augmented copies of it behind."""

    @property
    def steps_per_epoch(self) -> int:
        return self.mixture.steps_per_epoch

    def __len__(self) -> int:
        return self.epochs * self.steps_per_epoch

    @property
    def rows(self) -> int:
        """Of a batch."""
        return self.mixture.rows * (1 + self.repeats)

    def __getitem__(self, step: int) -> Batch:
        return self.take(step, torch.arange(self.rows))

    def take(self, step: int, rows: Tensor) -> Batch:
        """These rows of a batch; of the others, only those are made that are mixed into them."""
        if not 0 <= step < len(self):
            raise IndexError(step)
        size, mixing = self.mixture.rows, self._mixing
        num_plain = size if self.repeats else 0  # the batch as it is comes before its copies
        is_plain = rows < num_plain
        plain, changed = rows[is_plain], rows[~is_plain] - num_plain
        shared = sample_streams(self.mixture.seed, [step]).child(self.mixture.phase, "mixing")
        partners = changed if mixing is None else mixing.partners(changed, size * max(1, self.repeats), shared)
        made = torch.cat([changed, partners])
        places = plain if self._crops else torch.cat([plain, made % size])
        read = _Rows(places, lambda rows: self.mixture.take(step, rows))
        copies = _Rows(made, lambda rows: self._augmented(step, rows, read))
        parts = []
        if len(plain):
            parts.append(self._as_mixed(read[plain]))
        if len(changed):
            x, y, ids = self._as_mixed(copies[changed])
            if mixing is not None:
                other = self._as_mixed(copies[partners])
                random = self.streams(step, ids).child("mixing") if mixing.each == "image" else shared
                x, y = mixing.scaled(self.strength(step)).blend(x, y, other.images, other.y, random)
            parts.append(Batch(x, y, ids))
        return joined(parts).take(is_plain.argsort(descending=True, stable=True).argsort())

    def streams(self, step: int, ids: Tensor) -> SampleStreams:
        """The rows' own randomness in the epoch that the step belongs to."""
        return sample_streams(self.mixture.seed, ids).child(self.mixture.phase, "epoch", step // self.steps_per_epoch)

    def strength(self, step: int) -> float:
        """The intensity's factor at a step."""
        return 1.0 if self.intensity is None else self.intensity(step / len(self))

    @property
    def _mixing(self) -> Mixing | None:
        return self.mixing if self.mixing is not None and self.mixing.is_on else None

    @property
    def _crops(self) -> bool:
        """Whether parts are cut out of whole pictures."""
        return has_whole(self.mixture.real) and isinstance(self.augmentation, Cropping) and self.augmentation.crops

    def _as_mixed(self, batch: Batch) -> Batch:
        """With floats and probabilities, as mixed images have them, where images are mixed."""
        if self._mixing is None:
            return batch
        images = as_pixels(batch.images)
        return Batch(images, F.one_hot(batch.y, self.mixture.num_classes).to(images.dtype), batch.ids)

    def _augmented(self, step: int, rows: Tensor, read: "_Rows") -> Batch:
        """Rows of the augmented copies, counted through all of them."""
        augmentation = None if self.augmentation is None else scaled(self.augmentation, self.strength(step))
        copies, places = rows // self.mixture.rows, rows % self.mixture.rows
        added = (copies + 1) * COPY if self.repeats else torch.zeros_like(rows)  # to the ids
        if self._crops and isinstance(augmentation, Cropping):
            return self._cropped(augmentation, step, places, added)
        images, y, ids = read[places]
        ids = ids + added
        return Batch(images if augmentation is None else augmentation(images, self._random(step, ids)), y, ids)

    def _cropped(self, augmentation: Cropping, step: int, places: Tensor, added: Tensor) -> Batch:
        """The crop comes out of the whole picture before it is made smaller; a generated image is its own."""
        order = places.argsort(stable=True)
        added = added[order]

        def cut(ids: Tensor) -> Cut:
            return augmentation.cut(self._random(step, ids + added[: len(ids)]))  # real images come first

        images, y, ids = self.mixture.take(step, places[order], cut)
        batch = Batch(images, y, ids + added)
        random, generated = self._random(step, batch.ids), batch.is_generated
        parts = [
            change(images[rows], random[rows])
            for change, rows in ((augmentation.after_crop, ~generated), (augmentation, generated))
            if rows.any()
        ]
        return batch._replace(images=torch.cat(parts)).take(order.argsort())

    def _random(self, step: int, ids: Tensor) -> SampleStreams:
        return self.streams(step, ids).child("augmentation")


@dataclass(frozen=True)
class RowsOf:
    """The same rows of every batch: those that one of several processes computes."""

    batches: Batches
    rows: Tensor

    @property
    def steps_per_epoch(self) -> int:
        return self.batches.steps_per_epoch

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, step: int) -> Batch:
        return self.batches.take(step, self.rows)


class _Rows:
    """Rows of a batch, each made once, all together when one of them is asked for."""

    def __init__(self, rows: Tensor, make: Callable[[Tensor], Batch]) -> None:
        self._rows, self._make = torch.unique(rows), make

    @cached_property
    def _batch(self) -> Batch:
        return self._make(self._rows)

    def __getitem__(self, rows: Tensor) -> Batch:
        return self._batch.take(torch.searchsorted(self._rows, rows))


def load_batches(batches: Feed[T], begin: int, workers: int, pin_memory: bool = False) -> Generator[T, None, None]:
    """The batches from `begin` on, made ahead by so many processes; 0: made here, when asked for."""
    steps = range(begin, len(batches))
    if workers == 0:
        yield from (batches[step] for step in steps)
        return
    loader = DataLoader(
        _Guarded(batches),
        batch_size=None,
        sampler=steps,
        num_workers=workers,
        pin_memory=pin_memory,
        generator=torch.Generator(),  # else the global one is drawn from
        multiprocessing_context="fork",  # memory maps are inherited, not copied
        worker_init_fn=_ignore_signals,
    )
    try:
        for batch in loader:
            if isinstance(batch, UserError):
                raise batch
            yield batch
    except (RuntimeError, ConnectionError, EOFError) as error:  # the latter two: killed while it handed a batch over
        if isinstance(error, RuntimeError) and "DataLoader worker" not in str(error):
            raise
        advice = "the same command resumes, fewer `workers` need less memory"
        raise UserError(f"a data worker died ({first_line(error)}); {advice}") from error


@dataclass(frozen=True)
class _Guarded(Dataset[T | UserError], Generic[T]):
    """Errors as values: an exception would reach the user with the worker's traceback."""

    batches: Feed[T]

    def __getitem__(self, step: int) -> T | UserError:
        try:
            return self.batches[step]
        except UserError as error:
            return error


def _ignore_signals(worker: int) -> None:
    # Ctrl-C reaches the whole process group, and the parent's handlers are inherited: it alone decides
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)

"""What a training step gets: images by the number of the step, augmented and mixed, made ahead by workers.

A batch depends on (seed, phase, step) alone. Nothing is remembered between two of them, so any worker may make any one,
and a resumed run asks for the steps that are left.
"""

import signal
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from robustvit.core.errors import UserError, first_line
from robustvit.core.streams import SampleStreams, sample_streams
from robustvit.data.augment.base import Augmentation, Crop, Cropping, Scalable
from robustvit.data.augment.mixing import Mixing
from robustvit.data.base import Cut, as_pixels
from robustvit.data.mixture import COPY, GENERATED, Mixture

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
N = TypeVar("N", int, Tensor)


class Feed(Protocol[T_co]):
    """Batches by the number of their step."""

    @property
    def steps_per_epoch(self) -> int: ...

    def __len__(self) -> int: ...

    def __getitem__(self, step: int) -> T_co: ...


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
        size = self.mixture.rows
        is_plain = rows < (size if self.repeats else 0)  # the batch as it is comes before its copies
        plain, changed = rows[is_plain], rows[~is_plain] - (size if self.repeats else 0)
        partners = self._partners(step, changed)
        made = _sorted(torch.cat([changed, partners]))
        places = plain if self._crop is not None else torch.cat([plain, made % size])
        read = _Some(_sorted(places), lambda places: Batch(*self.mixture.take(step, places)))
        parts = []
        if len(plain):
            parts.append(self._unmixed(read[plain]))
        if len(changed):
            copies = _Some(made, lambda rows: self._augmented(step, rows, read))
            parts.append(self._mixed(step, copies, changed, partners))
        order = torch.cat([is_plain.nonzero(), (~is_plain).nonzero()]).flatten()
        return _at(_joined(parts), order.argsort())

    def streams(self, step: int, ids: Tensor) -> SampleStreams:
        """The rows' own randomness in the epoch that the step belongs to."""
        of = self.mixture
        return sample_streams(of.seed, ids).child(of.phase, "epoch", step // self.steps_per_epoch)

    def strength(self, step: int) -> float:
        """The intensity's factor at a step."""
        return 1.0 if self.intensity is None else self.intensity(step / len(self))

    @property
    def _mixes(self) -> bool:
        return self.mixing is not None and self.mixing.is_on

    @property
    def _crop(self) -> Crop | None:
        """Cuts a part out of whole pictures, where there are such."""
        crop = self.augmentation.crop if isinstance(self.augmentation, Cropping) else None
        return crop if self.mixture.has_whole else None

    def _partners(self, step: int, rows: Tensor) -> Tensor:
        """The rows that are mixed into these: themselves where nothing is mixed."""
        if self.mixing is None or not self._mixes:
            return rows
        return self.mixing.partners(rows, self.mixture.rows * max(1, self.repeats), self._shared(step))

    def _shared(self, step: int) -> SampleStreams:
        """What the rows of a batch draw together."""
        return sample_streams(self.mixture.seed, [step]).child(self.mixture.phase, "mixing")

    def _unmixed(self, batch: Batch) -> Batch:
        if not self._mixes:
            return batch
        images = as_pixels(batch.images)
        return Batch(images, F.one_hot(batch.y, self.mixture.num_classes).to(images.dtype), batch.ids)

    def _mixed(self, step: int, copies: "_Some", rows: Tensor, partners: Tensor) -> Batch:
        batch = copies[rows]
        if self.mixing is None or not self._mixes:
            return batch
        other = copies[partners]
        x, y = self.mixing.scaled(self.strength(step)).blend(
            as_pixels(batch.images),
            batch.y,
            as_pixels(other.images),
            other.y,
            self.mixture.num_classes,
            images=self.streams(step, batch.ids).child("mixing"),
            batch=self._shared(step),
        )
        return Batch(x, y, batch.ids)

    def _augmented(self, step: int, rows: Tensor, read: "_Some") -> Batch:
        """Sorted rows of the augmented copies, counted through all of them."""
        numbers, places = rows // self.mixture.rows, rows % self.mixture.rows
        if self._crop is not None:
            copies = [
                self._cut_out(self._crop, step, places[numbers == number], self._copy(number))
                for number in _sorted(numbers).tolist()
            ]
            return _joined(copies)
        images, y, ids = read[places]
        ids = ids + self._copy(numbers)
        change = self._change(step)
        return Batch(images if change is None else change(images, self._random(step, ids)), y, ids)

    def _copy(self, number: N) -> N:
        """What the number of a copy adds to the ids of its rows."""
        return (number + 1) * COPY if self.repeats else number * 0

    def _cut_out(self, crop: Crop, step: int, rows: Tensor, copy: int) -> Batch:
        """The crop comes out of the whole picture before it is made smaller; a generated image is its own."""

        def cut(ids: Tensor) -> Cut:
            random = self._random(step, ids + copy)
            return Cut(lambda row, *size: crop.part(random[torch.tensor([row])], *size), crop.interpolation)

        images, y, ids = self.mixture.take(step, rows, cut)
        ids = ids + copy
        change, random = self._change(step), self._random(step, ids)
        assert isinstance(change, Cropping)
        made = Batch(images, y, ids).is_generated
        parts = []  # a batch may have none of a kind; generated ones stand behind
        if not bool(made.all()):
            parts.append(change.after_crop(images[~made], random[~made]))
        if bool(made.any()):
            parts.append(change(images[made], random[made]))
        return Batch(torch.cat(parts), y, ids)

    def _change(self, step: int) -> Augmentation | None:
        if self.intensity is not None and isinstance(self.augmentation, Scalable):
            return self.augmentation.scaled(self.strength(step))
        return self.augmentation

    def _random(self, step: int, ids: Tensor) -> SampleStreams:
        return self.streams(step, ids).child("augmentation")


class _Some:
    """Sorted rows of a batch, made together when one of them is asked for."""

    def __init__(self, rows: Tensor, make: Callable[[Tensor], Batch]) -> None:
        self._rows, self._make = rows, make
        self._batch: Batch | None = None

    def __getitem__(self, rows: Tensor) -> Batch:
        if self._batch is None:
            self._batch = self._make(self._rows)
        return _at(self._batch, torch.searchsorted(self._rows, rows))


def _sorted(rows: Tensor) -> Tensor:
    """Each once."""
    return torch.unique(rows)  # type: ignore[no-any-return]


def _at(batch: Batch, rows: Tensor) -> Batch:
    return Batch(*(part[rows] for part in batch))


def _joined(batches: list[Batch]) -> Batch:
    return Batch(*(torch.cat(parts) for parts in zip(*batches, strict=True)))


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
        for made in loader:
            if isinstance(made, UserError):
                raise made
            yield made
    except (RuntimeError, ConnectionError, EOFError) as error:  # the latter two: killed while it handed a batch over
        if isinstance(error, RuntimeError) and "DataLoader worker" not in str(error):
            raise
        raise UserError(
            f"a data worker died ({first_line(error)}); the same command goes on, fewer `workers` need less memory"
        ) from error


@dataclass(frozen=True)
class _Guarded(Dataset[T | UserError], Generic[T]):
    """Mistakes as values: an exception would reach the user with the worker's traceback."""

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

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

    def __getitem__(self, step: int) -> Batch:
        if not 0 <= step < len(self):
            raise IndexError(step)
        if not self.repeats:
            return self._mixed(self._made(step), step)
        taken = self.mixture.take(step)
        plain = Batch(*taken)
        copies = [self._made(step, number, taken) for number in range(1, self.repeats + 1)]
        changed = self._mixed(_joined(copies), step)
        if changed.y.ndim == 2:
            y = F.one_hot(plain.y, self.mixture.num_classes).to(changed.y.dtype)
            plain = Batch(as_pixels(plain.images), y, plain.ids)
        return _joined([plain, changed])

    def streams(self, step: int, ids: Tensor) -> SampleStreams:
        """The rows' own randomness in the epoch that the step belongs to."""
        of = self.mixture
        return sample_streams(of.seed, ids).child(of.phase, "epoch", step // self.steps_per_epoch)

    def strength(self, step: int) -> float:
        """The intensity's factor at a step."""
        return 1.0 if self.intensity is None else self.intensity(step / len(self))

    def _made(self, step: int, copy: int = 0, taken: tuple[Tensor, Tensor, Tensor] | None = None) -> Batch:
        """The step's images changed; `taken` are those as they are, if somebody has read them."""
        crop = self.augmentation.crop if isinstance(self.augmentation, Cropping) else None
        if crop is not None and self.mixture.has_whole:
            return self._cut_out(crop, step, copy)
        return self._augmented(taken or self.mixture.take(step), step, copy)

    def _augmented(self, taken: tuple[Tensor, Tensor, Tensor], step: int, copy: int) -> Batch:
        images, y, ids = taken[0], taken[1], taken[2] + copy * COPY
        change = self._change(step)
        return Batch(images if change is None else change(images, self._random(step, ids)), y, ids)

    def _cut_out(self, crop: Crop, step: int, copy: int) -> Batch:
        """The crop comes out of the whole picture before it is made smaller; a generated image is its own."""

        def cut(ids: Tensor) -> Cut:
            random = self._random(step, ids + copy * COPY)
            return Cut(lambda row, *size: crop.part(random[torch.tensor([row])], *size), crop.interpolation)

        images, y, ids = self.mixture.take(step, cut)
        ids = ids + copy * COPY
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

    def _mixed(self, batch: Batch, step: int) -> Batch:
        if self.mixing is None or not self.mixing.is_on:
            return batch
        of = self.mixture
        x, y = self.mixing.scaled(self.strength(step))(
            as_pixels(batch.images),
            batch.y,
            of.num_classes,
            images=self.streams(step, batch.ids).child("mixing"),
            batch=sample_streams(of.seed, [step]).child(of.phase, "mixing"),
        )
        return Batch(x, y, batch.ids)


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

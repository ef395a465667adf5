"""A named condition, and one pass of a batch through the model under conditions that differ only in how they decide."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from robustvit.attacks.base import Classifier, check_pixels
from robustvit.core.errors import UserError
from robustvit.core.streams import SampleStreams, sample_streams, seeded_globals
from robustvit.data.base import Images, as_pixels, data_fingerprint
from robustvit.evaluation.described import UndescribedError, described
from robustvit.evaluation.ledger import Answers
from robustvit.evaluation.subject import Subject
from robustvit.losses import predicted_classes

ImageChange = Callable[[Tensor, SampleStreams], Tensor | Iterator[Tensor]]
"""(B, 3, H, W) pixels in [0, 1] and the images' random streams -> (V * B, 3, H, W), V variants of the whole batch one
after the other, or an iterator over such parts. An image is right where all of its variants are; of an iterator, it
meets none after a wrong one."""
Decision = Callable[[Tensor], Tensor]
"""(B, K) logits, all finite -> (B,) classes."""


@dataclass(frozen=True)
class Condition:
    """A named condition to measure accuracy under: `fog/3`, `imagenet-r`, `without mlp 7`."""

    name: str
    groups: tuple[str, ...] = ()
    images: Images | None = None
    """None: the subject's own."""
    change: ImageChange | None = None
    around: Callable[[Classifier], AbstractContextManager[object]] | None = None
    """Changes the model within."""
    decide: Decision | None = None
    """From logits to classes; None: the largest logit."""

    def __str__(self) -> str:
        return self.name

    @property
    def is_clean(self) -> bool:
        """Whether images, model and decision are the subject's as they are."""
        return all(changed is None for changed in (self.images, self.change, self.around, self.decide))

    @property
    def variants(self) -> int:
        """How many of each image the change makes, where it has a number `variants` of them to tell; else 1."""
        return int(getattr(self.change, "variants", 1))

    def shares_pass(self, other: "Condition") -> bool:
        """Whether they differ only in how they decide; the same decision again asks for another random draw."""
        alike = self.images is other.images and self.change is other.change and self.around is other.around
        return alike and self.decide is not other.decide

    def identity(self) -> dict[str, Any]:
        """What distinguishes it from other conditions, by which a run folder keeps its answers."""
        images = None if self.images is None else data_fingerprint(self.images, torch.arange(len(self.images)))
        try:
            changes = {"change": described(self.change), "around": described(self.around)}
            if self.decide is not None:
                changes["decide"] = described(self.decide)
        except UndescribedError as problem:
            raise UserError(
                f"condition '{self.name}': {problem}, so that a run folder could mix it up with another; use a "
                "function of a module, functools.partial of one, or a dataclass with __call__"
            ) from None
        return {"name": self.name, "groups": list(self.groups), "images": images, **changes}


def group_passes(conditions: Sequence[Condition]) -> list[tuple[Condition, ...]]:
    """Conditions in their order; neighbors that differ only in how they decide share a pass."""
    passes: list[tuple[Condition, ...]] = []
    for condition in conditions:
        if passes and all(condition.shares_pass(other) for other in passes[-1]):
            passes[-1] += (condition,)
        else:
            passes.append((condition,))
    return passes


def answer_batch(subject: Subject, conditions: Sequence[Condition], batch: Tensor) -> list[Answers]:
    """What the model says to these images under each of the conditions, which share one pass.

    Random numbers are those of the first condition's name.
    """
    first = conditions[0]
    x, y = subject.batch(batch, first.images)
    random = sample_streams(subject.seed, batch).child("condition", first.name).to(x.device)
    changed = x if first.change is None else first.change(x, random)
    tallies = [_Tally(y) for _ in conditions]
    rows, count = torch.arange(len(x), device=x.device), 0
    with torch.no_grad(), seeded_globals(subject.seed, first.name, int(batch[0])):
        for variant in _variants(first, changed, x):
            logits = subject(variant if len(rows) == len(x) else variant[rows])
            for condition, tally in zip(conditions, tallies, strict=True):
                tally.add(count, rows, _decided(condition, logits))
            count += 1
            if isinstance(changed, Iterator):
                rows = rows[torch.stack([tally.is_right[rows] for tally in tallies]).any(0)]
            if not len(rows):
                break
    if not count:
        raise UserError(f"condition '{first.name}': the change of {len(x)} images returns no variant of them")
    return [tally.answers(batch, has_variants=count > 1) for tally in tallies]


def seconds_of_change(subject: Subject, condition: Condition, batch: Tensor) -> float:
    """For all variants of these images, without a pass."""
    if condition.change is None:
        return 0.0
    x, _ = subject.batch(batch, condition.images)
    random = sample_streams(subject.seed, batch).child("condition", condition.name).to(x.device)
    begin = time.perf_counter()
    for _ in _variants(condition, condition.change(x, random), x):
        pass
    return time.perf_counter() - begin


class _Tally:
    """What a condition has found of each image of a batch, variant by variant."""

    def __init__(self, y: Tensor) -> None:
        self.y = y
        self.predicted = torch.full_like(y, -1)
        self.first_wrong = torch.full_like(y, -1)

    @property
    def is_right(self) -> Tensor:
        return self.first_wrong < 0

    def add(self, number: int, rows: Tensor, predicted: Tensor) -> None:
        kept = predicted if number == 0 else self.predicted[rows]
        self.predicted[rows] = torch.where(predicted < 0, -1, kept)
        fails = (predicted != self.y[rows]) & self.is_right[rows]
        self.first_wrong[rows[fails]] = number

    def answers(self, batch: Tensor, has_variants: bool) -> Answers:
        values = (batch, self.predicted, self.is_right, self.first_wrong)
        images, predicted, correct, first_wrong = (value.cpu().numpy() for value in values)
        return Answers(images, predicted, correct, first_wrong if has_variants else None)


def _decided(condition: Condition, logits: Tensor) -> Tensor:
    """(B,) -1 where the logits aren't finite, whatever decides."""
    if condition.decide is None:
        return predicted_classes(logits)
    is_finite = torch.isfinite(logits).all(1)
    classes = condition.decide(torch.where(is_finite[:, None], logits, 0))
    if not isinstance(classes, Tensor) or classes.shape != is_finite.shape or classes.is_floating_point():
        got = f"{classes.dtype} {tuple(classes.shape)}" if isinstance(classes, Tensor) else type(classes).__name__
        raise UserError(f"condition '{condition.name}': decide returns {got}, not a class for each of {len(logits)}")
    return torch.where(is_finite, classes, -1)


def _variants(condition: Condition, changed: Any, x: Tensor) -> Iterator[Tensor]:
    """What a change returned, if it is pixels as the model takes them, variant by variant."""
    for part in changed if isinstance(changed, Iterator) else (changed,):
        fits = isinstance(part, Tensor) and part.ndim == 4 and part.shape[1] == 3 and part.numel() > 0
        if not fits or len(part) % len(x):
            got = tuple(part.shape) if isinstance(part, Tensor) else type(part).__name__
            expected = f"({len(x)}, 3, H, W), or a multiple of {len(x)} for several variants"
            where = f"condition '{condition.name}'"
            raise UserError(f"{where}: the change of {len(x)} images returns {got}, not {expected}")
        pixels = as_pixels(part, x.dtype)
        try:
            check_pixels(pixels)
        except UserError as error:
            raise UserError(f"condition '{condition.name}': {error}") from None
        yield from pixels.chunk(len(part) // len(x))

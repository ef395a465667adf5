"""Accuracy without an attack, over named conditions: other images, changed images, a changed model."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import BeforeValidator
from torch import Tensor

from robustvit.attacks.base import Classifier, check_pixels
from robustvit.core.component import component, to_dict
from robustvit.core.errors import UserError
from robustvit.core.figures import Chart, Heatmap
from robustvit.core.numbers import wilson_interval
from robustvit.core.progress import Progress
from robustvit.core.result import (
    CLEAN_ACCURACY,
    ROBUST_ACCURACY,
    ConditionResult,
    Measure,
    Outcomes,
    Provenance,
    Result,
    ResultWarning,
    accuracy_measure,
)
from robustvit.core.streams import SampleStreams, sample_streams, seeded_globals
from robustvit.core.world import World
from robustvit.data.base import Images, as_pixels, data_fingerprint
from robustvit.evaluation.batches import batches, in_memory
from robustvit.evaluation.described import UndescribedError, described
from robustvit.evaluation.evaluator import Evaluation, Sink
from robustvit.evaluation.ledger import CLEAN, Answers, Ledger
from robustvit.evaluation.sanity import chance_warning, not_finite_warning, probe_model
from robustvit.evaluation.subject import Subject
from robustvit.losses import predicted_classes

ImageChange = Callable[[Tensor, SampleStreams], Tensor]
"""(B, 3, H, W) pixels in [0, 1] and the images' random streams -> (V * B, 3, H, W), V variants of the whole batch one
after the other; an image is right where all of its variants are."""


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

    def __str__(self) -> str:
        return self.name

    @property
    def is_clean(self) -> bool:
        """Whether images and model are the subject's as they are."""
        return self.images is None and self.change is None and self.around is None

    def identity(self) -> dict[str, Any]:
        """What distinguishes it from other conditions, by which a run folder keeps its answers."""
        images = None if self.images is None else data_fingerprint(self.images, torch.arange(len(self.images)))
        try:
            changes = {"change": described(self.change), "around": described(self.around)}
        except UndescribedError as problem:
            raise UserError(
                f"condition '{self.name}': {problem}, so that a run folder could mix it up with another; use a "
                "function of a module, functools.partial of one, or a dataclass with __call__"
            ) from None
        return {"name": self.name, "groups": list(self.groups), "images": images, **changes}


class ConditionEvaluator(ABC):
    """Base class of evaluators over conditions; a subclass lists them and may override `measures`."""

    name: str
    worst: bool = False
    """Whether only images that were right so far meet the next condition."""

    @abstractmethod
    def list_conditions(self, subject: Subject) -> Sequence[Condition]: ...

    def measures(self, subject: Subject, answers: Mapping[str, Answers]) -> tuple[Measure, ...]:
        """Further ones than clean accuracy and, with `worst`, robust accuracy: the mean over several conditions."""
        return () if self.worst or len(answers) == 1 else (mean_accuracy(answers),)

    def figures(self, subject: Subject, answers: Mapping[str, Answers]) -> tuple[Chart | Heatmap, ...]:
        """What the report draws of the result."""
        return ()

    def begin(self, subject: Subject) -> "ConditionEvaluation":
        conditions = tuple(self.list_conditions(subject))
        names = [condition.name for condition in conditions]
        if not conditions or len(set(names)) < len(names):
            raise UserError(f"{self.name}: at least one condition, each with a name of its own, not {names}")
        for condition in conditions:
            if condition.images is not None and not len(condition.images):
                raise UserError(f"condition '{condition.name}': {condition.images.title} holds no images")
        if self.worst and all(condition.images is not None for condition in conditions):
            raise UserError(f"{self.name}: worst=true needs a condition on the images of the data itself")
        return ConditionEvaluation(self, subject, conditions)


def mean_accuracy(answers: Mapping[str, Answers]) -> Measure:
    """Over all conditions; of a single one, its accuracy."""
    if len(answers) == 1:
        ((name, only),) = answers.items()
        return accuracy_measure("accuracy", int(only.correct.sum()), len(only.correct), f"under {name}")
    every = list(answers.values())
    value = float(np.mean([one.correct.mean() for one in every]))
    return Measure("mean_accuracy", value, _interval_of_mean(every), f"mean over {len(every)} conditions")


def _conditions(value: Any) -> Any:
    items = [value] if isinstance(value, str | Condition) else value
    if not isinstance(items, Sequence) or not all(isinstance(item, str | Condition) for item in items):
        raise ValueError("a condition's name, a Condition, or a list of these")
    unknown = next((item for item in items if isinstance(item, str) and item != CLEAN), None)
    if unknown is not None:
        raise ValueError(f"no condition '{unknown}'; known by name: {CLEAN}")
    return tuple(Condition(item) if isinstance(item, str) else item for item in items)


@component("evaluator", "accuracy")
class Accuracy(ConditionEvaluator):
    """Accuracy under conditions, by default on the images as they are."""

    conditions: Annotated[tuple[Any, ...], BeforeValidator(_conditions)] = (Condition(CLEAN),)
    """Named changes of the images or the model."""
    worst: bool = False

    def list_conditions(self, subject: Subject) -> Sequence[Condition]:
        return self.conditions


@dataclass(frozen=True)
class ConditionEvaluation(Evaluation):
    """Conditions in order over the images of a subject."""

    conditions: tuple[Condition, ...]

    @property
    def title(self) -> str:
        return str(self.evaluator.name)

    @property
    def settings(self) -> dict[str, Any]:
        return {"worst": self.evaluator.worst, **to_dict(self.evaluator)}

    @property
    def identity(self) -> dict[str, Any]:
        return {**self.settings, "conditions": [condition.identity() for condition in self.conditions]}

    def passes(self) -> int:
        return sum(map(len, self.expected_rows().values()))

    def probe(self) -> Sequence[ResultWarning]:
        return probe_model(self.subject)

    def advance(self, ledger: Ledger, world: World, sinks: Sequence[Sink], quiet: bool) -> None:
        for condition, images in self._rounds(ledger):
            if not quiet:
                ledger.refresh()  # progress is that of all processes
            missing = _missing(ledger, condition, images)
            with Progress(condition.name, len(images), len(images) - len(missing), quiet=quiet) as progress:
                self._ask(ledger, condition, images, world.shard(torch.from_numpy(missing)).tolist(), progress)

    def _ask(
        self, ledger: Ledger, condition: Condition, images: np.ndarray, todo: list[int], progress: Progress
    ) -> None:
        around = condition.around(self.subject.model) if condition.around is not None else nullcontext()
        with around:
            for batch in batches(todo, self.subject.batch_size):
                for part, answer in in_memory(batch, lambda part: self._answer(condition, part), ledger.warn):
                    ledger.record_answers(condition.name, part.numpy(), *answer)
                if not progress.quiet:
                    ledger.refresh()
                    progress.update(len(images) - len(_missing(ledger, condition, images)))

    def _answer(self, condition: Condition, batch: Tensor) -> tuple[np.ndarray, np.ndarray]:
        subject = self.subject
        x, y = subject.batch(batch, condition.images)
        random = sample_streams(subject.seed, batch).child("condition", condition.name).to(x.device)
        changed = x if condition.change is None else _checked(condition, condition.change(x, random), x)
        with torch.no_grad(), seeded_globals(subject.seed, condition.name, int(batch[0])):
            parts = [predicted_classes(subject(rows)) for rows in changed.chunk(len(changed) // len(x))]
        predicted = torch.stack(parts)  # (V, B)
        first = torch.where((predicted < 0).any(0), -1, predicted[0])
        return first.cpu().numpy(), (predicted == y).all(0).cpu().numpy()

    def _rounds(self, ledger: Ledger) -> Iterator[tuple[Condition, np.ndarray]]:
        """Each condition with the images that meet it, by what the ledger knows when its turn comes."""
        left = self.subject.indices.numpy()
        for condition in self.conditions:
            images = left if condition.images is None else np.arange(len(condition.images))
            yield condition, images
            if self.evaluator.worst and condition.images is None:
                answers = ledger.answers(condition.name)
                left = np.intersect1d(images, answers.images[answers.correct])

    def expected_rows(self) -> dict[str, np.ndarray]:
        own = self.subject.indices.numpy()
        return {one.name: own if one.images is None else np.arange(len(one.images)) for one in self.conditions}

    def is_complete(self, ledger: Ledger) -> bool:
        return not any(len(_missing(ledger, condition, images)) for condition, images in self._rounds(ledger))

    def result(self, ledger: Ledger, provenance: Provenance, control: Result | None) -> Result:
        answers = {condition.name: ledger.answers(condition.name) for condition in self.conditions}
        images, clean = self.subject.indices.numpy(), self.clean
        known = None if clean is None else answers[clean.name]
        own = [answers[condition.name] for condition in self.conditions if condition.images is None]
        outcomes = Outcomes(
            index=images,
            predicted=None if known is None else _at(known, images, known.predicted, -1),
            correct=None if known is None else _at(known, images, known.correct, False),
            robust=np.logical_and.reduce([_at(one, images, one.correct, False) for one in own]) if own else None,
        )
        return Result(
            kind=self.evaluator.name,
            title=self.title,
            measures=self._measures(answers, outcomes),
            provenance=provenance,
            outcomes=outcomes,
            conditions=tuple(_condition_result(one, answers[one.name]) for one in self.conditions),
            warnings=(*ledger.warnings, *self._noticed(answers, outcomes)),
            figures=self.evaluator.figures(self.subject, answers),
        )

    @property
    def clean(self) -> Condition | None:
        """The condition that is the subject as it is, if all images meet it."""
        own = [condition for condition in self.conditions if condition.images is None]
        met_by_all = own[:1] if self.evaluator.worst else own
        return next((condition for condition in met_by_all if condition.is_clean), None)

    def _measures(self, answers: Mapping[str, Answers], outcomes: Outcomes) -> tuple[Measure, ...]:
        total, measures = len(outcomes.index), list(self.evaluator.measures(self.subject, answers))
        if outcomes.correct is not None:
            measures.insert(0, accuracy_measure(CLEAN_ACCURACY, int(outcomes.correct.sum()), total))
        if self.evaluator.worst and outcomes.robust is not None and len(answers) > 1:
            measures.append(accuracy_measure(ROBUST_ACCURACY, int(outcomes.robust.sum()), total))
        return tuple(measures) or (mean_accuracy(answers),)

    def _noticed(self, answers: Mapping[str, Answers], outcomes: Outcomes) -> Iterator[ResultWarning]:
        if outcomes.correct is not None:
            yield from chance_warning(self.subject, int(outcomes.correct.sum()))
        yield from not_finite_warning({name: int((one.predicted < 0).sum()) for name, one in answers.items()})


def _missing(ledger: Ledger, condition: Condition, images: np.ndarray) -> np.ndarray:
    """Those that the ledger has no answer for."""
    return np.setdiff1d(images, ledger.answers(condition.name).images)


def _checked(condition: Condition, changed: Any, x: Tensor) -> Tensor:
    """What a change returned, if it is pixels as the model takes them."""
    fits = isinstance(changed, Tensor) and changed.ndim == 4 and changed.shape[1] == 3 and changed.numel() > 0
    if not fits or len(changed) % len(x):
        got = tuple(changed.shape) if isinstance(changed, Tensor) else type(changed).__name__
        expected = f"({len(x)}, 3, H, W), or a multiple of {len(x)} for several variants"
        raise UserError(f"condition '{condition.name}': the change of {len(x)} images returns {got}, not {expected}")
    pixels = as_pixels(changed, x.dtype)
    try:
        check_pixels(pixels)
    except UserError as error:
        raise UserError(f"condition '{condition.name}': {error}") from None
    return pixels


def _condition_result(condition: Condition, answers: Answers) -> ConditionResult:
    hits, total = int(answers.correct.sum()), len(answers.correct)
    accuracy = (hits / total, wilson_interval(hits, total)) if total else (None, None)
    return ConditionResult(condition.name, condition.groups, total, *accuracy)


def _interval_of_mean(answers: Sequence[Answers]) -> tuple[float, float] | None:
    """Conditions on the same images aren't independent: the standard error comes from each image's mean."""
    if any(not np.array_equal(one.images, answers[0].images) for one in answers) or len(answers[0].images) < 2:
        return None
    means = np.mean([one.correct for one in answers], axis=0)
    half = 1.959963984540054 * float(means.std(ddof=1)) / len(means) ** 0.5
    return max(0.0, float(means.mean()) - half), min(1.0, float(means.mean()) + half)


def _at(answers: Answers, images: np.ndarray, values: np.ndarray, missing: Any) -> np.ndarray:
    """The values of these images; `missing` for one that was not asked."""
    known = dict(zip(answers.images.tolist(), values.tolist(), strict=True))
    return np.array([known.get(image, missing) for image in images.tolist()])

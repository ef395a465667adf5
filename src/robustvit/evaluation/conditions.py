"""Accuracy without an attack, over named conditions: other images, changed images, a changed model."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import BeforeValidator

from robustvit.core.component import component, to_dict
from robustvit.core.errors import UserError
from robustvit.core.figures import Chart, Heatmap
from robustvit.core.measure import Kind
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
    mean_accuracy_measure,
)
from robustvit.core.world import World
from robustvit.data.base import Dataset
from robustvit.evaluation.batches import batches, in_memory
from robustvit.evaluation.condition import Condition as Condition, answer_batch, group_passes, seconds_of_change
from robustvit.evaluation.evaluator import Evaluation, Sink
from robustvit.evaluation.ledger import CLEAN, Answers, Ledger
from robustvit.evaluation.sanity import chance_warning, not_finite_warning, probe_model
from robustvit.evaluation.subject import Subject


class ConditionEvaluator(ABC):
    """Base class of evaluators over conditions; a subclass lists them and may override `measures`."""

    name: str
    worst: bool = False
    """Whether only images that were right so far meet the next condition."""

    @property
    def own_data(self) -> Dataset | None:
        """Images that it brings itself, in place of the caller's; an accuracy on them is never called clean."""
        return None

    @abstractmethod
    def list_conditions(self, subject: Subject) -> Sequence[Condition]: ...

    def measures(self, subject: Subject, answers: Mapping[str, Answers]) -> tuple[Measure, ...]:
        """Further ones than clean accuracy and, with `worst`, robust accuracy: the mean over several conditions."""
        return () if self.worst or len(answers) == 1 else (mean_accuracy(answers),)

    def measure_kinds(self) -> Mapping[str, Kind] | None:
        """Every measure that its results may have; None where that isn't known beforehand."""
        names = (CLEAN_ACCURACY, "accuracy", "mean_accuracy", ROBUST_ACCURACY)
        return dict.fromkeys(names, "accuracy") if type(self).measures is ConditionEvaluator.measures else None

    def describe_worst(self, subject: Subject) -> str:
        """Over what the robust accuracy is the worst case, with `worst`."""
        return ""

    def notes(self, subject: Subject, answers: Mapping[str, Answers]) -> tuple[str, ...]:
        """What must be said next to the numbers."""
        return ()

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
    every, about = list(answers.values()), f"mean over {len(answers)} conditions"
    if all(np.array_equal(one.images, every[0].images) for one in every):
        return mean_accuracy_measure("mean_accuracy", np.stack([one.correct for one in every]), about)
    value = float(np.mean([one.correct.mean() for one in every]))
    return Measure("mean_accuracy", value, None, about, kind="accuracy")


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
        rows = self.expected_rows()
        return sum(len(rows[asked[0].name]) * asked[0].variants for asked in group_passes(self.conditions))

    def seconds_of_changes(self) -> float:
        """By one image under each condition."""
        rows, seconds = self.expected_rows(), 0.0
        for asked in group_passes(self.conditions):
            images = rows[asked[0].name]
            seconds += len(images) * seconds_of_change(self.subject, asked[0], torch.from_numpy(images[:1]))
        return seconds

    def probe(self) -> Sequence[ResultWarning]:
        return probe_model(self.subject)

    def advance(self, ledger: Ledger, world: World, sinks: Sequence[Sink], quiet: bool) -> None:
        for asked, images in self._rounds(ledger):
            if not quiet:
                ledger.refresh()  # progress is that of all processes
            missing = _missing(ledger, asked, images)
            with Progress(asked[0].name, len(images), len(images) - len(missing), quiet=quiet) as progress:
                self._ask(ledger, asked, images, world.shard(torch.from_numpy(missing)).tolist(), progress)

    def _ask(
        self, ledger: Ledger, asked: Sequence[Condition], images: np.ndarray, todo: list[int], progress: Progress
    ) -> None:
        around = asked[0].around(self.subject.model) if asked[0].around is not None else nullcontext()
        with around:
            for batch in batches(todo, self.subject.batch_size):
                for _, answers in in_memory(batch, lambda part: answer_batch(self.subject, asked, part), ledger.warn):
                    for condition, answer in zip(asked, answers, strict=True):
                        ledger.record_answers(condition.name, *answer)
                if not progress.quiet:
                    ledger.refresh()
                    progress.update(len(images) - len(_missing(ledger, asked, images)))

    def _rounds(self, ledger: Ledger) -> Iterator[tuple[tuple[Condition, ...], np.ndarray]]:
        """Each pass with the images that meet it, by what the ledger knows when its turn comes."""
        left = self.subject.indices.numpy()
        for asked in group_passes(self.conditions):
            of = asked[0].images
            images = left if of is None else np.arange(len(of))
            yield asked, images
            if self.evaluator.worst and of is None:
                for answers in (ledger.answers(condition.name) for condition in asked):
                    left = np.intersect1d(left, answers.images[answers.correct])

    def expected_rows(self) -> dict[str, np.ndarray]:
        own = self.subject.indices.numpy()
        return {one.name: own if one.images is None else np.arange(len(one.images)) for one in self.conditions}

    def is_complete(self, ledger: Ledger) -> bool:
        return not any(len(_missing(ledger, asked, images)) for asked, images in self._rounds(ledger))

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
            under=None if self.evaluator.worst else _columns(own, images, len(answers)),
        )
        return Result(
            kind=self.evaluator.name,
            title=self.title,
            measures=self._measures(answers, outcomes),
            provenance=provenance,
            outcomes=outcomes,
            conditions=tuple(_condition_result(one, answers[one.name]) for one in self.conditions),
            warnings=(*ledger.warnings, *self._noticed(answers, outcomes)),
            notes=self.evaluator.notes(self.subject, answers),
            figures=self.evaluator.figures(self.subject, answers),
        )

    @property
    def clean(self) -> Condition | None:
        """The condition that is the subject as it is, if all images meet it."""
        if self.evaluator.own_data is not None:
            return None
        own = [asked for asked in group_passes(self.conditions) if asked[0].images is None]
        met_by_all = own[:1] if self.evaluator.worst else own
        return next((condition for asked in met_by_all for condition in asked if condition.is_clean), None)

    def _measures(self, answers: Mapping[str, Answers], outcomes: Outcomes) -> tuple[Measure, ...]:
        total, measures = len(outcomes.index), list(self.evaluator.measures(self.subject, answers))
        if outcomes.correct is not None:
            measures.insert(0, accuracy_measure(CLEAN_ACCURACY, int(outcomes.correct.sum()), total))
        if self.evaluator.worst and outcomes.robust is not None and len(answers) > 1:
            about = self.evaluator.describe_worst(self.subject)
            measures.append(accuracy_measure(ROBUST_ACCURACY, int(outcomes.robust.sum()), total, about))
        return tuple(measures) or (mean_accuracy(answers),)

    def _noticed(self, answers: Mapping[str, Answers], outcomes: Outcomes) -> Iterator[ResultWarning]:
        if outcomes.correct is not None:
            yield from chance_warning(self.subject, int(outcomes.correct.sum()))
        yield from not_finite_warning({name: int((one.predicted < 0).sum()) for name, one in answers.items()})


def _missing(ledger: Ledger, asked: Sequence[Condition], images: np.ndarray) -> np.ndarray:
    """Those that the ledger lacks an answer for."""
    known = images
    for condition in asked:
        known = np.intersect1d(known, ledger.answers(condition.name).images)
    return np.setdiff1d(images, known)


def _condition_result(condition: Condition, answers: Answers) -> ConditionResult:
    hits, total = int(answers.correct.sum()), len(answers.correct)
    accuracy = (hits / total, wilson_interval(hits, total)) if total else (None, None)
    return ConditionResult(condition.name, condition.groups, total, *accuracy)


def _columns(own: Sequence[Answers], images: np.ndarray, count: int) -> np.ndarray | None:
    """(N, C); None where some of the conditions have images of their own."""
    return None if len(own) < count else np.stack([_at(one, images, one.correct, False) for one in own], 1)


def _at(answers: Answers, images: np.ndarray, values: np.ndarray, missing: Any) -> np.ndarray:
    """The values of these images; `missing` for one that was not asked."""
    known = dict(zip(answers.images.tolist(), values.tolist(), strict=True))
    return np.array([known.get(image, missing) for image in images.tolist()])

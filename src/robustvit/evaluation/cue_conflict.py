"""Shape or texture: what a model goes by where the two disagree (Geirhos et al. 2019)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, cast

import numpy as np
import torch
from torch import Tensor

from robustvit.core.component import component
from robustvit.core.figures import Chart, Heatmap, Line
from robustvit.core.measure import Kind
from robustvit.core.numbers import counted, wilson_interval
from robustvit.core.result import Measure, accuracy_measure
from robustvit.data.cue_conflict import (
    ClassNumbers,
    CueConflict,
    Decisions,
    category_classes,
    published_decisions,
    texture_labels,
)
from robustvit.data.pictures import Pictures
from robustvit.data.preprocess import Preprocess
from robustvit.evaluation.conditions import Condition, ConditionEvaluator
from robustvit.evaluation.ledger import Answers
from robustvit.evaluation.subject import Subject

NUM_STIMULI = 1280
"""As published: 80 of each shape, 5 of them with the texture of the same category."""
COMPARED = ("people", "AlexNet", "ResNet-50", "ResNet-50 (SIN)")
"""Shown by shape; a chart of more could not be read."""
_TIE = 1e-9
"""Categories whose log probabilities differ by less are equal but for rounding."""


@dataclass(frozen=True)
class LargestMean:
    """Decides for the category whose classes have the largest mean probability; of equal ones, for the first."""

    categories: tuple[tuple[int, ...], ...]

    def __call__(self, logits: Tensor) -> Tensor:
        logs = logits.double().log_softmax(1)  # probabilities themselves would become 0 for all but one category
        means = [logs[:, list(classes)].logsumexp(1) - math.log(len(classes)) for classes in self.categories]
        scores = torch.stack(means, dim=1)
        return (scores >= scores.amax(1, keepdim=True) - _TIE).int().argmax(1)


@component("evaluator", "cue-conflict")
class ShapeOrTexture(ConditionEvaluator):
    """Cue conflict (Geirhos et al. 2019): whether a model goes by shape or by texture."""

    path: Path
    """A folder or a tar archive of pictures called SHAPEn-TEXTUREn, also below a folder for each category."""
    preprocess: Preprocess = Preprocess()
    """How pictures are brought to one size; default: as they are, 224 px."""
    labels: ClassNumbers = "imagenet1k"
    """Whose classes the model has; of CIFAR-10's, 7 are among the 16 categories, and only their pictures are shown."""

    sides: ClassVar[tuple[int, int]] = (224, 224)
    """Of the pictures as published."""

    @property
    def own_data(self) -> CueConflict:
        return CueConflict(self.path, self.preprocess, self.labels)

    def list_conditions(self, subject: Subject) -> Sequence[Condition]:
        categories = category_classes(self.labels)
        return (Condition(f"{len(categories)} categories", decide=LargestMean(tuple(categories.values()))),)

    def measures(self, subject: Subject, answers: Mapping[str, Answers]) -> tuple[Measure, ...]:
        found = _Found.of(subject, answers)
        shape, texture = int(found.for_shape.sum()), int(found.for_texture.sum())
        total = int(found.conflicts.sum())
        measures = []
        if total:
            of = f"of {counted(total, 'picture')} with two categories"
            measures += [
                accuracy_measure("texture_accuracy", texture, total, f"{of}, decided for the texture", "fraction"),
                accuracy_measure("conflicting_shape_accuracy", shape, total, f"{of}, decided for the shape"),
            ]
        if shape + texture:
            description = "decisions for the shape, of those for shape or texture"
            measures.append(accuracy_measure("shape_bias", shape, shape + texture, description, "fraction"))
        every = len(found.correct)
        description = f"of all {every:,} pictures, decided for the shape"
        return (*measures, accuracy_measure("shape_accuracy", int(found.correct.sum()), every, description))

    def measure_kinds(self) -> Mapping[str, Kind]:
        accuracies: dict[str, Kind] = {"conflicting_shape_accuracy": "accuracy", "shape_accuracy": "accuracy"}
        return {**accuracies, "texture_accuracy": "fraction", "shape_bias": "fraction"}

    def notes(self, subject: Subject, answers: Mapping[str, Answers]) -> tuple[str, ...]:
        if len(subject.images) == NUM_STIMULI:
            return ()
        held, found = counted(len(subject.images), "picture"), _Found.of(subject, answers)
        if len(category_classes(self.labels)) == len(category_classes()):
            return (f"{subject.images.title} holds {held}, where {NUM_STIMULI:,} are published",)
        height, width = subject.batch(subject.indices[:1])[0].shape[2:]
        names = ", ".join(category_classes(self.labels))
        return (
            f"{held} of the categories that {self.labels} has ({names}), {int(found.conflicts.sum())} of them with "
            f"two, at {height}x{width} px: not comparable with the {NUM_STIMULI:,} published ones at 224x224",
        )

    def figures(self, subject: Subject, answers: Mapping[str, Answers]) -> tuple[Chart | Heatmap, ...]:
        """Decisions by shape; the shape bias next to that of people and networks, of all pictures and by shape."""
        found, categories = _Found.of(subject, answers), tuple(category_classes(self.labels))
        shape, texture = (
            np.bincount(found.shapes[chosen], minlength=len(categories)).tolist()
            for chosen in (found.for_shape, found.for_texture)
        )
        others = published_decisions() if len(categories) == len(category_classes()) else {}
        every = {"this model": Decisions(shape=shape, texture=texture), **others}
        totals = _line("shape bias", *([sum(one[cue]) for one in every.values()] for cue in ("shape", "texture")))
        shown = [name for name in ("this model", *COMPARED) if name in every]
        lines = (_line(name, every[name]["shape"], every[name]["texture"]) for name in shown)
        counted = "Decisions for the shape, of those for shape or texture"
        source = " People and networks: Geirhos et al. 2019; SIN: trained on Stylized-ImageNet." if others else ""
        return (
            _decisions_by_shape(found, categories),
            Chart("Shape bias", "shape bias", (totals,), True, "dots", tuple(every), note=f"{counted}.{source}"),
            Chart(
                "Shape bias by shape", "shape bias", tuple(lines), True, "dots", categories,
                note=f"{counted}, by the category of the shape.{source}",
            ),
        )  # fmt: skip


@dataclass(frozen=True)
class _Found:
    """Of each picture, in the order of the answers."""

    shapes: np.ndarray
    conflicts: np.ndarray
    correct: np.ndarray
    for_shape: np.ndarray
    """Decided for the shape, where the texture is another category's."""
    for_texture: np.ndarray

    @classmethod
    def of(cls, subject: Subject, answers: Mapping[str, Answers]) -> "_Found":
        ((_, said),) = answers.items()
        images = cast(Pictures, subject.images)
        shapes, textures = (labels.numpy()[said.images] for labels in (images.labels, texture_labels(images)))
        conflicts = shapes != textures
        return cls(shapes, conflicts, said.correct, conflicts & said.correct, conflicts & (said.predicted == textures))


def _decisions_by_shape(found: _Found, categories: tuple[str, ...]) -> Heatmap:
    """Empty rows are of shapes without a picture whose two categories differ."""
    rows = []
    for number in range(len(categories)):
        own = found.conflicts & (found.shapes == number)
        hits = (int((own & chosen).sum()) for chosen in (found.for_shape, found.for_texture))
        rows.append(tuple(count / int(own.sum()) if own.any() else None for count in hits))
    note = "Of the pictures with two categories, how many were decided for the shape and for the texture."
    return Heatmap(
        "Decisions by shape", categories, ("shape accuracy", "texture accuracy"), tuple(rows), row_title="shape",
        limits=(0.0, 1.0), note=note,
    )  # fmt: skip


def _line(name: str, shape: Sequence[int], texture: Sequence[int]) -> Line:
    """The shape bias of each row that has any decision for shape or texture."""
    pairs = enumerate(zip(shape, texture, strict=True))
    known = [(row, hits, hits + others) for row, (hits, others) in pairs if hits + others]
    rows, values = tuple(float(row) for row, _, _ in known), tuple(hits / total for _, hits, total in known)
    return Line(name, rows, values, tuple(wilson_interval(hits, total) for _, hits, total in known))

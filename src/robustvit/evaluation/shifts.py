"""Other pictures of ImageNet's classes: renditions (R), hard photographs (A), a second test set (V2), sketches.

Accuracy is over all 1,000 classes and, where fewer occur, over those that do: one pass gives both.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from robustvit.core.component import component, settings
from robustvit.core.errors import UserError
from robustvit.core.measure import Kind
from robustvit.core.numbers import counted
from robustvit.core.result import Measure, accuracy_measure
from robustvit.data.base import Dataset
from robustvit.data.folder import Folder
from robustvit.data.labels import Numbering, class_list, present_classes
from robustvit.data.preprocess import Preprocess
from robustvit.data.shards import Shards, is_shards
from robustvit.evaluation.conditions import Condition, ConditionEvaluator
from robustvit.evaluation.ledger import Answers
from robustvit.evaluation.subject import Subject


@dataclass(frozen=True)
class Among:
    """Decides for the largest logit of these classes."""

    classes: tuple[int, ...]

    def __call__(self, logits: Tensor) -> Tensor:
        classes = torch.tensor(self.classes, device=logits.device)
        return classes[logits[:, classes].argmax(1)]


@dataclass(frozen=True)
class Published:
    """What a published set holds."""

    title: str
    classes: str
    """The list of its classes."""
    num_images: int


@settings
class _Pictures(ConditionEvaluator):
    """Abstract: pictures of some of ImageNet's classes."""

    path: str
    """A folder with a folder for each class, or tar shards."""
    preprocess: Preprocess = Preprocess(size=224, how="crop")
    """How pictures are brought to one size; default: shorter side to 256, the center of 224 cut out."""
    labels: Numbering = "imagenet1k"
    """Whose numbers the classes of the model have."""

    published: ClassVar[Published | None] = None

    @property
    def own_data(self) -> Dataset:
        if is_shards(self.path):
            return Shards(path=self.path, preprocess=self.preprocess, labels=self.labels)
        return Folder(path=Path(self.path), preprocess=self.preprocess, labels=self.labels)

    def list_conditions(self, subject: Subject) -> Sequence[Condition]:
        present, total = present_classes(subject.images), len(class_list(self.labels))
        if self.published is not None:
            self._check_classes(self.published, present, subject.images.title)
        every = Condition(f"all {total:,} classes")
        if len(present) in (1, total):  # among a single class, every decision is right
            return (every,)
        return (every, Condition(f"{len(present)} classes present", decide=Among(present)))

    def _check_classes(self, published: Published, present: Sequence[int], title: str) -> None:
        every, expected = class_list(self.labels), set(class_list(published.classes))
        found = {every[number] for number in present}
        if missing := sorted(expected - found):
            problem = f"lacks {len(missing)} of the {len(expected):,} classes, such as {missing[0]}"
        elif more := sorted(found - expected):
            problem = f"has {len(more)} classes more than {len(expected):,}, such as {more[0]}"
        else:
            return
        raise UserError(
            f"{self.name}: {title} is not {published.title}: it {problem}; --suite shift:path=... takes any"
        )

    def measures(self, subject: Subject, answers: Mapping[str, Answers]) -> tuple[Measure, ...]:
        return tuple(
            accuracy_measure(name, int(one.correct.sum()), len(one.correct), f"over {condition}")
            for name, (condition, one) in zip(self.measure_kinds(), answers.items(), strict=False)
        )

    def measure_kinds(self) -> Mapping[str, Kind]:
        return {"all_classes_accuracy": "accuracy", "present_classes_accuracy": "accuracy"}

    def notes(self, subject: Subject, answers: Mapping[str, Answers]) -> tuple[str, ...]:
        if len(present_classes(subject.images)) == 1:
            return ("all images are of one class, so that the accuracy over the classes present would always be 100 %",)
        if self.published is None or len(subject.images) == self.published.num_images:
            return ()
        published = f"{self.published.title} has {self.published.num_images:,} as published"
        return (f"{subject.images.title} holds {counted(len(subject.images), 'image')}; {published}",)


@component("evaluator", "shift")
class Shift(_Pictures):
    """Any pictures of some of ImageNet's 1,000 classes: accuracy over all classes and over those present."""


@component("evaluator", "imagenet-r")
class ImageNetR(_Pictures):
    """ImageNet-R: art, cartoons, toys and other renditions of 200 classes (Hendrycks et al. 2021)."""

    published = Published("ImageNet-R", "imagenet-r", 30_000)


@component("evaluator", "imagenet-a")
class ImageNetA(_Pictures):
    """ImageNet-A: photographs of 200 classes that a ResNet-50 got wrong (Hendrycks et al. 2021)."""

    published = Published("ImageNet-A", "imagenet-a", 7_500)


@component("evaluator", "imagenet-v2")
class ImageNetV2(_Pictures):
    """ImageNetV2: a second test set, collected as the first was (Recht et al. 2019)."""

    published = Published("ImageNetV2", "imagenet1k", 10_000)


@component("evaluator", "imagenet-sketch")
class ImageNetSketch(_Pictures):
    """ImageNet-Sketch: black and white sketches of all classes (Wang et al. 2019)."""

    published = Published("ImageNet-Sketch", "imagenet1k", 50_889)

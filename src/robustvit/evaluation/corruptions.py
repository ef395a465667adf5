"""Accuracy under the corruptions of ImageNet-C: on images that are corrupted here, or on the published files."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from PIL import Image
from pydantic import BeforeValidator, Field, model_validator
from torch import Tensor

from robustvit.core.component import component
from robustvit.core.figures import Chart, Heatmap
from robustvit.core.measure import Kind
from robustvit.core.result import CLEAN_ACCURACY, Measure, ResultWarning
from robustvit.core.streams import SampleStreams
from robustvit.data.corruptions import GENERATOR, Corruption, ParameterSet, corrupted, jpeg, parameters_for
from robustvit.data.corruptions.base import check_size
from robustvit.data.corruptions.choice import Frost, Severities, Which, chosen_corruptions
from robustvit.data.corruptions.digital import each_picture
from robustvit.data.corruptions.published import CorruptedImages, open_published
from robustvit.data.corruptions.textures import textures_digest
from robustvit.evaluation.conditions import Condition, ConditionEvaluation, ConditionEvaluator
from robustvit.evaluation.corruption_baseline import Baseline, trained_corruptions
from robustvit.evaluation.corruption_measures import (
    CLASSES_OF_MCE,
    IMAGES_OF_MCE,
    SIDES_OF_MCE,
    CorruptionAnswers,
    condition_name,
)
from robustvit.evaluation.ledger import CLEAN, Answers
from robustvit.evaluation.subject import Subject

PUBLISHED_QUALITY = 85
"""Of the JPEG files that ImageNet-C consists of."""
Quality = Annotated[int, Field(ge=1, le=100)]


@dataclass(frozen=True)
class Corrupt:
    """Corrupts images; its fields are part of the identity of an evaluation."""

    corruption: Corruption
    severity: int
    parameters: ParameterSet
    quality: int | None
    """Of the JPEG that follows."""
    size: int | None
    textures: str
    """Digest of published textures of frost."""
    generator: int = GENERATOR

    def __call__(self, x: Tensor, streams: SampleStreams) -> Tensor:
        images = (x.cpu() * 255).round().to(torch.uint8)
        sides = (images.shape[2], images.shape[3])
        images = _resized(images, sides if self.size is None else (self.size, self.size))
        made = corrupted(images, self.corruption, self.severity, self.parameters, streams.to("cpu"))
        made = made if self.quality is None else jpeg(made, self.quality)
        return _resized(made, sides).to(x.device)


class Read:
    """The corrupted versions of images in published files."""

    def __init__(self, images: CorruptedImages, rows: Tensor, asked: Tensor) -> None:
        self._images, self._rows, self._asked = images, rows, asked

    def __call__(self, x: Tensor, streams: SampleStreams) -> Tensor:
        return _resized(self._images.take(self._rows[streams.ids.cpu()]), (x.shape[2], x.shape[3])).to(x.device)

    @property
    def sides(self) -> tuple[int, int]:
        """Height and width of the first file."""
        height, width = self._images.take(self._rows[self._asked[:1]]).shape[2:]
        return height, width

    def __repr__(self) -> str:
        """Another text when one of the files has changed: it is part of the identity of an evaluation."""
        return f"Read({self._images.state(self._rows[self._asked])!r})"


def _resized(images: Tensor, sides: tuple[int, int]) -> Tensor:
    if images.shape[2:] == sides:
        return images
    height, width = sides
    return each_picture(images, lambda picture: picture.resize((width, height), Image.Resampling.BICUBIC))


def _quality(value: Any) -> Any:
    return None if value in ("null", "none") else value  # as settings after a colon say it


@component("evaluator", "corruptions")
class Corruptions(ConditionEvaluator):
    """Accuracy under the corruptions of ImageNet-C (Hendrycks and Dietterich 2019), generated or from its files."""

    which: Which = "standard"
    """`standard`: the 15 types; `extra`: the 4 for validation; `all`; or a list of names."""
    severities: Severities = (1, 2, 3, 4, 5)
    """From 1 to 5."""
    source: Literal["generated"] | Path = "generated"
    """`generated`: the images of the data are corrupted; or a folder with CIFAR-10-C or ImageNet-C as published."""
    parameters: Literal["auto"] | ParameterSet = "auto"
    """Whose constants; auto: CIFAR-10-C's up to 32 pixels, ImageNet-C's above."""
    jpeg: Annotated[Literal["auto"] | Quality | None, BeforeValidator(_quality)] = "auto"
    """Quality of the JPEG that generated images pass through; auto: 85 with ImageNet's parameters, as its files did."""
    frost: Frost = "drawn"
    """Textures of frost: robustvit's own, or a folder with the published files."""
    size: Annotated[int, Field(ge=1, le=4096)] | None = None
    """Pixels of the side at which images are corrupted, then resized to their own size; null: their own. At most
    4,096."""
    baseline: Path | None = None
    """Folder of another model's result on the same images, by whose errors those of this one are divided."""

    @model_validator(mode="after")
    def _check(self) -> "Corruptions":
        usual = {"parameters": "auto", "jpeg": "auto", "frost": "drawn", "size": None}
        given = next((name for name, value in usual.items() if getattr(self, name) != value), None)
        if self.is_published and given is not None:
            raise ValueError(f"{given}: published files are read as they are; leave it out, or source: generated")
        return self

    @property
    def is_published(self) -> bool:
        return self.source != "generated"

    @property
    def corruptions(self) -> tuple[Corruption, ...]:
        return chosen_corruptions(self.which, self.frost)

    def list_conditions(self, subject: Subject) -> Sequence[Condition]:
        changes = self._read(subject) if isinstance(self.source, Path) else self._generate(subject)
        conditions = [
            Condition(condition_name(one.name, severity), (one.group,), change=changes[one.name, severity])
            for one in self.corruptions
            for severity in self.severities
        ]
        return [Condition(CLEAN), *conditions]

    def begin(self, subject: Subject) -> "CorruptionEvaluation":
        evaluation = CorruptionEvaluation(self, subject, super().begin(subject).conditions)
        if self.baseline is not None:
            evaluation.read_baseline()
        return evaluation

    def _read(self, subject: Subject) -> dict[tuple[str, int], Read]:
        wanted = [(one.name, severity) for one in self.corruptions for severity in self.severities]
        published = open_published(Path(self.source), wanted)
        rows = published.rows(subject.images)
        return {key: Read(part, rows, subject.indices) for key, part in published.parts.items()}

    def _generate(self, subject: Subject) -> dict[tuple[str, int], Corrupt]:
        parameters, quality = self.resolved(subject)
        textures = "" if self.frost == "drawn" else textures_digest(self.frost)
        return {
            (one.name, severity): Corrupt(
                one, severity, parameters, quality, self.size, textures if one.name == "frost" else ""
            )
            for one in self.corruptions
            for severity in self.severities
        }

    def resolved(self, subject: Subject) -> tuple[ParameterSet, int | None]:
        """Parameters and quality of JPEG for the images of a subject."""
        sides = self._sides(subject)
        parameters = parameters_for(*sides) if self.parameters == "auto" else self.parameters
        check_size(*sides, parameters)
        usual = PUBLISHED_QUALITY if parameters == "imagenet" else None
        return parameters, usual if self.jpeg == "auto" else self.jpeg

    def measures(self, subject: Subject, answers: Mapping[str, Answers]) -> tuple[Measure, ...]:
        found = self._answers(answers)
        measures = list(found.measures())
        if found.has_mce and self._is_like_imagenet_c(subject):
            measures.append(found.mce(self.is_published, self._sides(subject)))
        if self.baseline is not None:
            measures.append(Baseline.read(self.baseline).measure(found))
        return (*measures, *found.means())

    def measure_kinds(self) -> Mapping[str, Kind]:
        none = Answers(*(np.zeros(2, kind) for kind in (np.int64, np.int64, bool)))
        names = [condition_name(one.name, severity) for one in self.corruptions for severity in self.severities]
        found = self._answers(dict.fromkeys((CLEAN, *names), none))
        own: dict[str, Kind] = {one.name: one.kind for one in (*found.measures(), *found.means())}
        ratios = (*(("mce", "mce_own_images") if found.has_mce else ()), "ce_relative_to_baseline")
        return {CLEAN_ACCURACY: "accuracy", **own, **dict.fromkeys(ratios, "number")}

    def _is_like_imagenet_c(self, subject: Subject) -> bool:
        """Whether AlexNet's errors are of images like these."""
        if subject.num_classes != CLASSES_OF_MCE:
            return False
        return self._sides(subject) == SIDES_OF_MCE if self.is_published else self.resolved(subject)[0] == "imagenet"

    def _sides(self, subject: Subject) -> tuple[int, int]:
        """Height and width of the corrupted images, before they are resized to those of the data."""
        if self.is_published:
            return next(iter(self._read(subject).values())).sides
        height, width = subject.batch(subject.indices[:1])[0].shape[2:]
        return (height, width) if self.size is None else (self.size, self.size)

    def figures(self, subject: Subject, answers: Mapping[str, Answers]) -> tuple[Chart | Heatmap, ...]:
        return self._answers(answers).figures()

    def notes(self, subject: Subject, answers: Mapping[str, Answers]) -> tuple[str, ...]:
        """What was measured on; numbers on generated images must not be taken for those of the published files."""
        count, sides = len(subject.indices), "{}x{} px".format(*self._sides(subject))
        if self.is_published:
            of = f" of {IMAGES_OF_MCE:,}" if subject.num_classes == CLASSES_OF_MCE else ""
            return (f"published files of {self.source}: {count:,}{of} images, {sides}",)
        parameters, quality = self.resolved(subject)
        after = "no JPEG" if quality is None else f"JPEG {quality}"
        frost = "drawn" if self.frost == "drawn" else "published"
        with_frost = f", {frost} frost" if any(one.name == "frost" for one in self.corruptions) else ""
        made = f"generator {GENERATOR}, {sides}, parameters of {parameters}, {after}{with_frost}"
        return (f"images generated by robustvit ({made}): not comparable with results on the published files",)

    def _answers(self, answers: Mapping[str, Answers]) -> CorruptionAnswers:
        return CorruptionAnswers({one.name: one.group for one in self.corruptions}, self.severities, answers)


@dataclass(frozen=True)
class CorruptionEvaluation(ConditionEvaluation):
    """Corruptions of the images of a subject."""

    @property
    def settings(self) -> dict[str, Any]:
        """With what `auto` meant."""
        settings = {**super().settings, "generator": GENERATOR}
        if not self.evaluator.is_published:
            settings["parameters"], settings["jpeg"] = self.evaluator.resolved(self.subject)
        return settings

    @property
    def identity(self) -> dict[str, Any]:
        """Without the baseline, on which no answer depends."""
        return {key: value for key, value in super().identity.items() if key != "baseline"}

    def read_baseline(self) -> None:
        """Refuse one that isn't of the same images."""
        names = [one.name for one in self.evaluator.corruptions]
        baseline = Baseline.read(self.evaluator.baseline)
        baseline.check(names, self.evaluator.severities, self.settings, self.subject.data_sha256)

    def recipe_warnings(self, recipe: Mapping[str, Any]) -> Sequence[ResultWarning]:
        trained = trained_corruptions(recipe)
        seen = [one.name for one in self.evaluator.corruptions if one.name in trained]
        if not seen:
            return ()
        observation = f"the recipe of the model trained with {len(seen)} of these types: {', '.join(seen)}"
        advice = "compare with other models on the other types only"
        return (ResultWarning("trained-with-corruptions", observation, advice, inflates=True),)

"""Numbers from answers under corruptions, each with a name that says over what it is a mean."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from robustvit.core.figures import Chart, Heatmap, Line
from robustvit.core.numbers import counted, mean_interval, mean_ratio_interval
from robustvit.core.result import Measure, mean_accuracy_measure
from robustvit.data.corruptions import EXTRA, SEVERITIES, STANDARD
from robustvit.evaluation.ledger import CLEAN, Answers

ALEXNET_ERRORS = {
    "gaussian_noise": 0.886428,
    "shot_noise": 0.894468,
    "impulse_noise": 0.922640,
    "defocus_blur": 0.819880,
    "glass_blur": 0.826268,
    "motion_blur": 0.785948,
    "zoom_blur": 0.798360,
    "snow": 0.866816,
    "frost": 0.826572,
    "fog": 0.819324,
    "brightness": 0.564592,
    "contrast": 0.853204,
    "elastic_transform": 0.646056,
    "pixelate": 0.717840,
    "jpeg_compression": 0.606500,
}
"""Mean over the five severities of ImageNet-C, by which mCE divides (Hendrycks and Dietterich 2019): as listed in
github.com/google-research/augmix, imagenet.py of 2020-01-30."""
CLASSES_OF_MCE, IMAGES_OF_MCE, SIDES_OF_MCE = 1000, 50_000, (224, 224)
"""Of the published files of ImageNet-C."""
MEANS = {"mean_75_accuracy": STANDARD, "mean_extra_20_accuracy": EXTRA, "mean_95_accuracy": STANDARD + EXTRA}
"""The means that have a name of their own, over all severities."""


def condition_name(corruption: str, severity: int) -> str:
    return f"{corruption}/{severity}"


@dataclass(frozen=True)
class CorruptionAnswers:
    """Which images were right under each corruption and severity."""

    groups: Mapping[str, str]
    """By corruption."""
    severities: Sequence[int]
    answers: Mapping[str, Answers]

    @cached_property
    def correct(self) -> np.ndarray:
        """(types, severities, images)"""
        return np.stack(
            [[self.answers[condition_name(name, level)].correct for level in self.severities] for name in self.groups]
        )

    @cached_property
    def errors(self) -> dict[str, np.ndarray]:
        """(images,) of each type, over the severities."""
        return {name: 1 - correct.mean(0) for name, correct in zip(self.groups, self.correct, strict=True)}

    def measures(self) -> tuple[Measure, ...]:
        """By type, severity and group, the worst type and the drop."""
        over = f"mean over severities {', '.join(map(str, self.severities))}"
        types = [
            mean_accuracy_measure(f"type_{name}_accuracy", correct, over, is_detail=True)
            for name, correct in zip(self.groups, self.correct, strict=True)
        ]
        of_types = f"mean over {counted(len(types), 'type')}"
        levels = [
            mean_accuracy_measure(f"severity_{level}_accuracy", self.correct[:, place], of_types, is_detail=True)
            for place, level in enumerate(self.severities)
        ]
        groups = [self._of_group(group) for group in dict.fromkeys(self.groups.values())]
        worst, name = min(zip(types, self.groups, strict=True), key=lambda pair: pair[0].value)
        of = name if len(types) == 1 else f"{name}, the lowest of {len(types)} types"
        lowest = replace(worst, name="worst_type_accuracy", description=of, is_detail=False)
        drop = self.answers[CLEAN].correct - self.correct.mean((0, 1))
        about = f"clean accuracy minus the {self._mean_text}"
        interval = mean_interval(drop, least=-1.0)
        fall = Measure("drop_from_clean_accuracy", float(drop.mean()), interval, about, kind="difference")
        return (*types, *levels, *groups, lowest, fall)

    def means(self) -> tuple[Measure, ...]:
        """Over the paper's sets where they are complete, or over what was asked; the widest one last."""
        made, asked = [], set(self.groups)
        for measure, names in MEANS.items():
            if asked.issuperset(names) and tuple(self.severities) == SEVERITIES:
                rows = [place for place, name in enumerate(self.groups) if name in names]
                made.append(mean_accuracy_measure(measure, self.correct[rows], _over(self.correct[rows])))
        is_set = tuple(self.severities) == SEVERITIES and asked in map(set, MEANS.values())
        return tuple(made) if is_set else (*made, mean_accuracy_measure("mean_accuracy", self.correct, self._mean_text))

    @property
    def _mean_text(self) -> str:
        return _over(self.correct)

    def relative_to(self, other: "CorruptionAnswers", about: str) -> Measure:
        """In percent: the error of each type over another model's on the same images, mean over the types."""
        own, theirs = (np.stack([one.errors[name] for name in self.groups]) for one in (self, other))
        value = float((own.mean(1) / theirs.mean(1)).mean())
        ends = mean_ratio_interval(own, theirs)
        interval = None if ends is None else (100 * ends[0], 100 * ends[1])
        return Measure("ce_relative_to_baseline", 100 * value, interval, about)

    @property
    def has_mce(self) -> bool:
        """Whether all that the mean corruption error is made of was asked."""
        return set(STANDARD) <= set(self.groups) and tuple(self.severities) == SEVERITIES

    def mce(self, is_published: bool, sides: tuple[int, int]) -> Measure:
        """Only files that everybody has make a number to compare with the literature; `sides` of the images."""
        count = self.correct.shape[2]
        formula = "mean over 15 types of the error over AlexNet's, in percent"
        ratios = 100 * np.mean([self.errors[one] / error for one, error in ALEXNET_ERRORS.items()], axis=0)
        most = 100 * float(np.mean([1 / error for error in ALEXNET_ERRORS.values()]))
        interval = mean_interval(ratios, most=most)
        if is_published:
            about = f"mCE: {formula}, on {count:,} of {IMAGES_OF_MCE:,} images"
            return Measure("mce", float(ratios.mean()), interval, about)
        theirs = "{:,} published files of {}x{} px".format(IMAGES_OF_MCE, *SIDES_OF_MCE)
        own = "{} of {}x{} px".format(counted(count, "image"), *sides)
        about = f"mCE, own images: {formula}, whose error is on {theirs}; here on {own}"
        return Measure("mce_own_images", float(ratios.mean()), interval, about)

    def figures(self) -> tuple[Chart | Heatmap, ...]:
        """Types by severities, and a line for each group."""
        means = self.correct.mean(2)
        with_means = np.vstack([means, means.mean(0)])
        with_means = np.hstack([with_means, with_means.mean(1, keepdims=True)])
        heatmap = Heatmap(
            "Accuracy by corruption and severity",
            (*self.groups, "mean"),
            (*map(str, self.severities), "mean"),
            tuple(tuple(map(float, row)) for row in with_means),
            row_title="corruption",
            column_title="severity",
        )
        if len(self.severities) == 1:
            return (heatmap,)
        xs = tuple(map(float, self.severities))
        lines = []
        for group in dict.fromkeys(self.groups.values()):
            per_image = self._rows_of(group).mean(0)  # (severities, images)
            intervals = [mean_interval(one) for one in per_image]
            known = tuple(one for one in intervals if one is not None)
            lines.append(Line(group, xs, tuple(map(float, per_image.mean(1))), known if len(known) == len(xs) else ()))
        return heatmap, Chart("Accuracy by severity", "severity", tuple(lines), in_percent=True)

    def _of_group(self, group: str) -> Measure:
        rows = self._rows_of(group)
        return mean_accuracy_measure(f"group_{group}_accuracy", rows, _over(rows))

    def _rows_of(self, group: str) -> np.ndarray:
        return self.correct[[place for place, of in enumerate(self.groups.values()) if of == group]]


def _over(correct: np.ndarray) -> str:
    """What (types, severities, images) are averaged over."""
    types, severities, _ = correct.shape
    return f"mean over {counted(types, 'type')} x {counted(severities, 'severity', 'severities')}"

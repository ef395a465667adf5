"""Stored results against the paper's numbers: arms, their accuracies, and the differences between them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from robustvit.core.config import load_recipe, load_sweep
from robustvit.core.errors import UserError
from robustvit.core.measure import Measure
from robustvit.core.numbers import crossed_interval, rank_correlation
from robustvit.core.recipe_info import info_of
from robustvit.core.result import CLEAN_ACCURACY, Result
from robustvit.reproduce.entries import Arm, Comparison, Entry, Full, Small
from robustvit.reproduce.verdict import NO_CLAIM, verdict

MEASURES = ("clean", "robust")


@dataclass(frozen=True)
class Values:
    """What an analysis keeps of each image, in place of the result of an evaluation."""

    title: str
    data: str
    of_images: np.ndarray
    """(N,), one for each."""
    digest: str
    """Eight digits of the fingerprint of the weights."""


Results = Mapping[str, Sequence[Result | Values]]
"""By the name of the arm, one for each seed."""


@dataclass(frozen=True)
class Compared:
    """A comparison and what came of it."""

    comparison: Comparison
    difference: Measure
    """Or the rank correlation."""
    effect: float | None
    """The paper's difference, as a fraction."""
    seeds: int
    images: int
    """1 where only the mean over images is known."""

    @property
    def verdict(self) -> str:
        return verdict(self.difference.interval, self.effect) if self.comparison.claimed else NO_CLAIM


def compared(entry: Entry, form: Small, results: Results, comparison: Comparison) -> Compared:
    """The difference between the arms, image by image and seed by seed; or how alike two orders of them are."""
    what, claim = f"{entry.name}: '{comparison.claim}'", comparison.claim
    paired = _paired(form, results, comparison.arms, comparison.measure, what)
    if comparison.ranked:
        clean = _paired(form, results, comparison.arms, "clean", what)
        value, interval = rank_correlation(clean.mean((1, 2)), paired.mean((1, 2)))
        return Compared(comparison, Measure(claim, value, interval), None, *paired.shape[1:])
    values = np.tensordot(np.repeat([1.0, -1.0], len(comparison.higher)), paired, 1)
    limit = len(comparison.higher) if form.bounded else np.inf
    shown = Measure(claim, float(values.mean()), crossed_interval(values, -limit, limit), kind="difference")
    return Compared(comparison, shown, effect(entry, form, comparison), *values.shape)


def level(form: Small, results: Results, name: str, measure: str) -> Measure | None:
    """The mean accuracy of an arm, with its interval over images and seeds; None where clean images weren't asked."""
    if measure == "clean" and not all(_has_clean(result) for result in results[name]):
        return None
    (values,) = _paired(form, results, [name], measure, f"arm '{name}'")
    if not form.bounded:
        return Measure(measure, float(values.mean()), crossed_interval(values, -np.inf, np.inf), kind="difference")
    return Measure(measure, float(values.mean()), crossed_interval(values, 0.0, 1.0), kind="accuracy")


def _paired(form: Small, results: Results, names: Sequence[str], measure: str, what: str) -> np.ndarray:
    """(arms, seeds, images) of accuracies; of means over images where the outcome of each isn't stored."""
    every = [result for name in names for result in results[name]]
    data = {_images(result) for result in every}
    if len(data) > 1 or len({len(results[name]) for name in names}) > 1:
        raise UserError(f"{what}: its runs have different images or numbers of seeds, so that none can be paired")
    rows = [[_values(result, form.arms[name], measure) for result in results[name]] for name in names]
    fewest = min(len(row) for several in rows for row in several)  # 1 where an arm has only means
    return np.array([[row if len(row) == fewest else [row.mean()] for row in several] for several in rows])


def _has_clean(result: Result | Values) -> bool:
    return isinstance(result, Result) and (result.has_clean or result.has(CLEAN_ACCURACY))


def _images(result: Result | Values) -> tuple[str, bytes | int]:
    """Equal where results are about the same images."""
    if isinstance(result, Values):
        return result.data, len(result.of_images)
    return result.provenance.data_sha256, result.outcomes.index.tobytes()


def _values(result: Result | Values, arm: Arm, measure: str) -> np.ndarray:
    if isinstance(result, Values):
        return result.of_images
    conditions = arm.conditions if measure == "robust" else tuple(filter(None, (arm.clean,)))
    if conditions:
        return np.asarray(result.under(*conditions).mean(1))
    of_images = result.outcomes.correct if measure == "clean" else result.outcomes.robust
    if of_images is not None:
        return of_images.astype(np.float64)
    return np.array([result.measure(CLEAN_ACCURACY).value if measure == "clean" else result.headline.value])


def effect(entry: Entry, form: Small, comparison: Comparison) -> float | None:
    """The paper's difference as a fraction; None where it doesn't print all of its numbers."""
    sides = (comparison.higher, comparison.lower)
    higher, lower = ([printed(entry, form, form.arms[name]) for name in names] for names in sides)
    if comparison.ranked or any(comparison.measure not in numbers for numbers in (*higher, *lower)):
        return None
    sums = [sum(numbers[comparison.measure] for numbers in several) for several in (higher, lower)]
    return (sums[0] - sums[1]) / 100


def printed(entry: Entry, form: Small, arm: Arm) -> dict[str, float]:
    """The paper's clean and robust accuracy in percent, as far as it prints them."""
    if not arm.paper or entry.full is None:
        return {str(measure): value for measure, value in arm.printed.items()}
    columns = {"clean": "clean", "robust": form.column}
    found = {
        measure: number.value
        for number in expected(entry.full)
        for measure, column in columns.items()
        if number.row == arm.paper and number.suite == column
    }
    if not found:
        raise UserError(f"{entry.name}: nothing at full scale expects a row '{arm.paper}'")
    return {**found, **{str(measure): value for measure, value in arm.printed.items()}}


def expected(full: Full) -> list[Any]:
    """What the recipes and sweeps of an entry expect."""
    infos = [info_of(load_sweep(name)) for name in full.sweeps] + [info_of(load_recipe(name)) for name in full.recipes]
    return [number for info in infos for number in info.expect]

"""Stored results of a sweep against the paper's numbers: arms, their accuracies, and the differences between them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from robustvit.core.config import load_recipe, load_sweep
from robustvit.core.errors import UserError
from robustvit.core.measure import Measure
from robustvit.core.numbers import crossed_interval
from robustvit.core.recipe_info import info_of
from robustvit.core.result import CLEAN_ACCURACY, Result
from robustvit.reproduce.entries import Arm, Comparison, Entry, Full, Small
from robustvit.reproduce.verdict import Verdict, verdict
from robustvit.training.sweep_finding import Outcome
from robustvit.training.sweep_grid import Point, Sweep

Outcomes = Sequence[tuple[Point, Outcome]]
MEASURES = ("clean", "robust")


@dataclass(frozen=True)
class Compared:
    """A comparison and what came of it."""

    comparison: Comparison
    difference: Measure
    effect: float | None
    """The paper's difference, as a fraction."""
    seeds: int
    images: int
    """1 where only the mean over images is known."""

    @property
    def verdict(self) -> Verdict:
        return verdict(self.difference.interval, self.effect)


def points_of(sweep: Sweep, arm: Arm) -> dict[Any, Point]:
    """The runs of an arm by their seed."""
    found: dict[Any, Point] = {}
    for point in sweep.points():
        if all(_setting(point.settings, path) == value for path, value in arm.of.items()):
            seed = point.settings.get("seed")
            if seed in found:
                raise UserError(f"{arm.of}: {found[seed].title} and {point.title} are both of this kind")
            found[seed] = point
    if not found:
        raise UserError(f"{arm.of}: no run of the sweep '{sweep.name}' has these settings")
    return found


def _setting(tree: Any, path: str) -> Any:
    """`optimizer.opt` of {optimizer: {opt: sgd}} as of {optimizer.opt: sgd}; None where it is not set."""
    if not isinstance(tree, Mapping):
        return None
    for name, value in tree.items():
        if name == path:
            return value
        if path.startswith(f"{name}."):
            return _setting(value, path[len(name) + 1 :])
    return None


def arm_results(sweep: Sweep, outcomes: Outcomes, arm: Arm) -> list[Result]:
    """A result for each seed."""
    known = {point.folder: outcome for point, outcome in outcomes}
    results = []
    for _, point in sorted(points_of(sweep, arm).items(), key=lambda item: str(item[0])):
        outcome = known[point.folder]
        if isinstance(outcome, UserError):
            raise UserError(f"{point.title}: {outcome}")
        results.append(_result(sweep, outcome, arm))
    return results


def _paired(arms: Sequence[Sequence[Result]], measure: str, what: str) -> np.ndarray:
    """(arms, seeds, images) of 0 and 1; of means over images where the outcome of each isn't stored."""
    every = [result for results in arms for result in results]
    data = {(result.provenance.data_sha256, result.outcomes.index.tobytes()) for result in every}
    if len(data) > 1 or len({len(results) for results in arms}) > 1:
        raise UserError(f"{what}: its runs have different images or numbers of seeds, so that none can be paired")
    rows = [[_values(result, measure) for result in results] for results in arms]
    fewest = min(len(row) for several in rows for row in several)  # 1 where an arm has only means
    return np.array([[row if len(row) == fewest else [row.mean()] for row in several] for several in rows])


def _result(sweep: Sweep, outcome: tuple[Result, ...], arm: Arm) -> Result:
    suite = 0 if arm.suite is None else [str(one) for one in sweep.suites].index(arm.suite)
    head = 0 if arm.head is None else sweep.heads.index(arm.head)
    return outcome[head * len(sweep.suites) + suite]


def _values(result: Result, measure: str) -> np.ndarray:
    of_images = result.outcomes.correct if measure == "clean" else result.outcomes.robust
    if of_images is not None:
        return of_images.astype(np.float64)
    return np.array([result.measure(CLEAN_ACCURACY).value if measure == "clean" else result.headline.value])


def compared(entry: Entry, form: Small, sweep: Sweep, outcomes: Outcomes, comparison: Comparison) -> Compared:
    """The difference between the arms, image by image and seed by seed."""
    arms = [arm_results(sweep, outcomes, form.arms[name]) for name in (*comparison.higher, *comparison.lower)]
    signs = np.repeat([1.0, -1.0], len(comparison.higher))
    paired = _paired(arms, comparison.measure, f"{entry.name}: '{comparison.claim}'")
    values, limit = np.tensordot(signs, paired, 1), float(len(comparison.higher))
    interval = crossed_interval(values, -limit, limit)
    shown = Measure(comparison.claim, float(values.mean()), interval, kind="difference")
    return Compared(comparison, shown, effect(entry, form, comparison), *values.shape)


def level(sweep: Sweep, outcomes: Outcomes, arm: Arm, measure: str) -> Measure:
    """The mean accuracy of an arm, with its interval over images and seeds."""
    (values,) = _paired([arm_results(sweep, outcomes, arm)], measure, sweep.name)
    return Measure(measure, float(values.mean()), crossed_interval(values, 0.0, 1.0), kind="accuracy")


def effect(entry: Entry, form: Small, comparison: Comparison) -> float | None:
    """The paper's difference as a fraction; None where it doesn't print all of its numbers."""
    sides = (comparison.higher, comparison.lower)
    higher, lower = ([printed(entry, form, form.arms[name]) for name in names] for names in sides)
    if any(comparison.measure not in numbers for numbers in (*higher, *lower)):
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

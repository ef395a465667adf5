"""Which of several models is more robust, and which order is chance: paired tests on the same images."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from robustvit.core.numbers import mcnemar_p_value
from robustvit.core.result import SIGNIFICANCE, Result


@dataclass(frozen=True)
class Pair:
    """Two results on the same images, the one with the higher robust accuracy first."""

    higher: int
    lower: int
    """Places in the list that was compared."""
    only_higher: int
    """Images that only the first one gets right."""
    only_lower: int
    p_value: float
    adjusted: float = 1.0
    """By Holm's method, over all pairs that were compared."""
    doubt: str = ""
    """Why the order isn't believed, whatever the test says."""

    @property
    def is_settled(self) -> bool:
        return self.adjusted < SIGNIFICANCE and not self.doubt

    @property
    def verdict(self) -> str:
        if self.doubt:
            return self.doubt
        return "higher" if self.is_settled else "may be chance"


def compared(results: Sequence[Result]) -> list[Pair]:
    """Every pair by McNemar's exact test, with Holm's correction for their number; in the order of the accuracies."""
    ranked = sorted(range(len(results)), key=lambda place: -results[place].robust_accuracy)
    return _adjusted([_pair(results, *pair) for pair in combinations(ranked, 2)])


def places(count: int, pairs: Sequence[Pair]) -> list[tuple[int, int]]:
    """The first and the last place that each may have, by the pairs whose order is no chance."""
    settled = [pair for pair in pairs if pair.is_settled]
    above = [sum(pair.lower == place for pair in settled) for place in range(count)]
    below = [sum(pair.higher == place for pair in settled) for place in range(count)]
    return [(1 + above[place], count - below[place]) for place in range(count)]


def _pair(results: Sequence[Result], higher: int, lower: int) -> Pair:
    first, second = results[higher], results[lower]
    assert np.array_equal(first.indices, second.indices), "only results on the same images are compared"
    only_first, only_second = first.is_robust & ~second.is_robust, second.is_robust & ~first.is_robust
    doubt = ""
    if first.is_doubtful:
        doubt = "doubtful: see the warnings"
    elif first.least_accuracy <= second.robust_accuracy < first.robust_accuracy:
        doubt = "unknown: AutoAttack met a sample"
    p_value = mcnemar_p_value(first.is_robust, second.is_robust)
    return Pair(higher, lower, int(only_first.sum()), int(only_second.sum()), p_value, doubt=doubt)


def _adjusted(pairs: Sequence[Pair]) -> list[Pair]:
    adjusted, least = list(pairs), 0.0
    for rank, place in enumerate(sorted(range(len(pairs)), key=lambda place: pairs[place].p_value)):
        least = min(1.0, max(least, (len(pairs) - rank) * pairs[place].p_value))
        adjusted[place] = replace(pairs[place], adjusted=least)
    return adjusted

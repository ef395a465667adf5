"""Statistics of fractions of images."""

from math import comb

import numpy as np
import pytest

from robustvit.core.numbers import mcnemar_p_value, mean_interval, wilson_interval


@pytest.mark.parametrize(("only_first", "only_second"), [(0, 0), (5, 0), (6, 0), (3, 3), (12, 4), (4, 12), (30, 31)])
def test_mcnemar_counts_only_images_that_one_of_the_two_gets_right(only_first: int, only_second: int) -> None:
    both, neither = 40, 20
    first = np.repeat([True, False, True, False], [only_first, only_second, both, neither])
    second = np.repeat([False, True, True, False], [only_first, only_second, both, neither])
    n, least = only_first + only_second, min(only_first, only_second)
    expected = min(1.0, 2 * sum(comb(n, k) for k in range(least + 1)) / 2**n)
    assert mcnemar_p_value(first, second) == pytest.approx(expected, rel=1e-12)


def test_a_mean_over_images_that_are_all_wrong_or_all_right_has_an_interval():
    """200 wrong images don't show that every other one is wrong, too."""
    assert mean_interval(np.zeros(200)) == pytest.approx((0.0, wilson_interval(0, 200)[1]))
    assert mean_interval(np.ones(200)) == pytest.approx((wilson_interval(200, 200)[0], 1.0))
    assert mean_interval(np.ones(200), most=float("inf")) == (1.0, 1.0), "no fraction of images"
    low, high = mean_interval(np.array([0.0, 1.0] * 50))
    assert (low, high) == pytest.approx((0.4015, 0.5985), abs=1e-4)

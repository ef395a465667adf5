"""Statistics of fractions of images."""

from math import comb

import numpy as np
import pytest
from scipy import stats

from robustvit.core.numbers import mcnemar_p_value, mean_interval, mean_ratio_interval, wilson_interval


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
    few = wilson_interval(0, 6)[1]
    assert mean_interval(np.zeros(6), least=-1.0) == pytest.approx((-few, few)), "a difference"
    assert mean_interval(np.full(6, 130.0), most=130.0) == pytest.approx((130 * (1 - few), 130)), "another scale"
    assert mean_interval(np.zeros(1)) is None


@pytest.mark.parametrize("count", [2, 3, 5, 8, 40])
def test_the_interval_of_a_mean_is_that_of_students_t(count):
    values = np.random.default_rng(count).random(count)
    expected = stats.t.interval(0.95, count - 1, values.mean(), stats.sem(values))
    assert mean_interval(values, -100.0, 100.0) == pytest.approx(expected)
    assert mean_interval(values) == pytest.approx(np.clip(expected, 0, 1))


def test_the_interval_of_paired_ratios_covers_as_often_as_it_says():
    """The delta method against repeated draws: 95 % within the error of 1,000 draws."""
    random, hits = np.random.default_rng(0), 0
    for _ in range(1000):
        hard = random.random((1, 120))  # an image is as hard for both models
        errors, references = ((random.random((3, 120)) < rate * hard).astype(float) for rate in (0.9, 0.6))
        low, high = mean_ratio_interval(errors, references)
        hits += low <= 1.5 <= high
    assert 925 <= hits <= 975


def test_a_model_over_itself_is_exact_and_equal_images_have_no_interval():
    errors = np.array([[0.0, 1.0, 0.5, 1.0], [1.0, 1.0, 0.0, 0.0]])
    assert mean_ratio_interval(errors, errors) == (1.0, 1.0)
    assert mean_ratio_interval(np.ones((2, 4)), np.ones((2, 4))) is None
    assert mean_ratio_interval(errors[:, :1], errors[:, 1:2]) is None


def test_equal_values_without_limits_tell_nothing_about_others():
    assert mean_interval(np.zeros(9), 0.0, np.inf) is None
    assert mean_interval(np.zeros(9), -np.inf, 1.0) is None
    assert mean_interval(np.zeros(9), -np.inf, np.inf) is None
    low, high = mean_interval(np.array([-9.0, 9.0, 9.0]), -np.inf, np.inf)
    assert low < -9  # nothing cuts it
    assert high > 9
    wide, narrow = (mean_interval(np.arange(9.0), -99, 99, confidence)[1] for confidence in (0.99, 0.95))
    assert wide > narrow == mean_interval(np.arange(9.0), -99, 99)[1]
    assert mean_interval(np.zeros(9), 0.0, 1.0)[1] > 0.2


def test_values_beyond_the_limits_are_a_mistake_of_the_caller():
    with pytest.raises(AssertionError, match="beyond the limits"):
        mean_interval(np.array([3.9, 4.1]))  # percent, where fractions are the default
    assert mean_interval(np.array([3.9, 4.1]), most=np.inf) is not None

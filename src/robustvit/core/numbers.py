"""Numbers as settings write them, their types, and intervals for fractions of images."""

import math
import re
from fractions import Fraction
from itertools import permutations
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, Field

from robustvit.core.errors import shortened

if TYPE_CHECKING:
    import numpy as np


_DECIMAL = r"\s*[+-]?(?:\d{1,60}\.?\d{0,60}|\.\d{1,60})(?:[eE][+-]?\d{1,3})?\s*"
"""Bounded, because an exponent of nine digits would be computed for minutes."""
_NUMBER = re.compile(rf"({_DECIMAL})(?:/({_DECIMAL}))?", re.ASCII)


def parse_number(value: Any) -> Any:
    """`"8/255"` as a number; anything else is left to the type check."""
    if isinstance(value, bool):
        raise ValueError(f"a number, not {value}")
    if not isinstance(value, str):
        return value
    match, shown = _NUMBER.fullmatch(value), shortened(value, 60)
    if match is None:
        raise ValueError(f"'{shown}' is not a number or a fraction such as 8/255")
    try:
        exact = Fraction(match[1].strip()) / Fraction((match[2] or "1").strip())
        number = float(exact)
    except ZeroDivisionError:
        raise ValueError(f"'{shown}' divides by zero") from None
    except OverflowError:
        raise ValueError(f"'{shown}' is not a number or a fraction such as 8/255") from None
    if exact and not number:
        raise ValueError(f"'{shown}' is too small for a number; write 0 if you mean it")
    return number


def format_fraction(value: float) -> str:
    """`8/255` where the number is so many 255ths (to a hundredth), `1/3` where no short decimal is equal, else the
    number; `parse_number` reads all back."""
    if float(f"{value:.3g}") != value and value > 0:
        levels = f"{value * 255:.2f}".rstrip("0").rstrip(".")
        for text in (f"{levels}/255", str(Fraction(value).limit_denominator(999))):
            if parse_number(text) == value and len(f"{value:.15g}") > 12:
                return text
    return f"{value:.15g}" if float(f"{value:.15g}") == value else repr(value)


def short_count(number: float) -> str:
    """`800`, `12k`, `85.27M`, `17.6G`."""
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if abs(number) >= size * (1 - 1e-9):
            return f"{number / size:.4g}{letter}"
    return f"{number / 1e3:.4g}k" if abs(number) >= 1e4 else f"{number:g}"


def counted(number: int, one: str, several: str = "") -> str:
    """`1 image`, `1,280 images`."""
    return f"{number:,} {one if number == 1 else several or f'{one}s'}"


Count = Annotated[int, Field(ge=1, le=1_000_000_000)]

Number = Annotated[float, BeforeValidator(parse_number), Field(allow_inf_nan=False)]
"""A float that may be written as a fraction."""

UnitInterval = Annotated[Number, Field(ge=0, le=1)]
NonNegative = Annotated[Number, Field(ge=0)]
Positive = Annotated[Number, Field(gt=0)]

MOST_PERMUTED = 8
"""Values whose orders are all tried: 40,320."""


def wilson_interval(hits: int, total: int, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson's score interval; unlike the normal one it is right near 0 and 1."""
    from scipy.stats import binomtest

    interval = binomtest(hits, total).proportion_ci(confidence, method="wilson")
    return (0.0 if hits == 0 else float(interval.low), 1.0 if hits == total else float(interval.high))


def upper_bound(hits: int, trials: int, confidence: float = 0.95) -> float:
    """Clopper and Pearson's one-sided bound: the largest fraction that makes so few hits 1 - confidence likely."""
    from scipy.stats import binomtest

    if hits >= trials:
        return 1.0
    return float(binomtest(hits, trials, alternative="less").proportion_ci(confidence, method="exact").high)


def mean_interval(
    values: "np.ndarray", least: float = 0.0, most: float = 1.0, confidence: float = 0.95
) -> tuple[float, float] | None:
    """For a mean over independent images, each of which is from `least` to `most`; None for fewer than two.

    By the t distribution. Where all images are equal, they have no standard error: Wilson's interval bounds how many
    others may differ, by as much as the limits allow; None without limits.
    """
    assert not ((values < least - 1e-9) | (values > most + 1e-9)).any(), "values beyond the limits"
    is_equal = len(values) > 0 and values.min() == values.max()
    if len(values) < 2 or (is_equal and not math.isfinite(most - least)):
        return None
    mean = float(values.mean())
    if is_equal:
        others = wilson_interval(0, len(values), confidence)[1]
        return mean - others * (mean - least), mean + others * (most - mean)
    half = _half_width(values, confidence)
    return max(least, mean - half), min(most, mean + half)


def crossed_interval(values: "np.ndarray", least: float = -1.0, most: float = 1.0) -> tuple[float, float] | None:
    """95 % for the mean of (seeds, images) over other seeds and other images; None where nothing tells.

    Every seed meets the same images, so both are random factors and crossed. The t interval over the means of the seeds
    has the chance of the seeds and of the rest in it; what images add to all seeds alike, by an analysis of variance,
    is added to it in squares; it is never narrower than over images alone. In simulations with 3 seeds it holds the
    mean in 94 to 99 of 100 cases. A bootstrap would draw from very few seeds, whose spread it takes for too small.
    With one seed or one image, over the other alone.
    """
    from scipy.special import stdtrit

    seeds, images = values.shape
    if seeds == 1 or values.min() == values.max():
        return mean_interval(values.mean(0), least, most)
    if images == 1:
        return mean_interval(values.mean(1), least, most)
    by_seed, by_image, mean = values.mean(1), values.mean(0), float(values.mean())
    rest = ((values - by_seed[:, None] - by_image + mean) ** 2).sum() / ((seeds - 1) * (images - 1))
    of_seeds, of_images = images * by_seed.var(ddof=1), seeds * by_image.var(ddof=1)
    seeds_t, images_t = (float(stdtrit(count - 1, 0.975)) ** 2 for count in (seeds, images))
    squared = max(seeds_t * of_seeds + images_t * max(of_images - rest, 0.0), images_t * of_images) / values.size
    half = float(squared) ** 0.5
    return max(least, mean - half), min(most, mean + half)


def mean_ratio_interval(values: "np.ndarray", references: "np.ndarray") -> tuple[float, float] | None:
    """95 % for the mean over rows of mean(values) / mean(references), which are paired: (rows, images) of each.

    By the delta method: a ratio changes as the mean of (value - ratio * reference) / mean(references) does. None for
    fewer than two images, or where all are equal, which tells nothing about others.
    """
    if values.shape[1] < 2 or not (values.std(1).any() or references.std(1).any()):
        return None
    below = references.mean(1, keepdims=True)
    ratios = values.mean(1, keepdims=True) / below
    half = _half_width(((values - ratios * references) / below).mean(0))
    mean = float(ratios.mean())
    return max(0.0, mean - half), mean + half


def _half_width(values: "np.ndarray", confidence: float = 0.95) -> float:
    """Of the interval of a mean, by its standard error and the t distribution."""
    from scipy.special import stdtrit

    return float(stdtrit(len(values) - 1, 0.5 + confidence / 2) * values.std(ddof=1) / len(values) ** 0.5)


def mcnemar_p_value(first: "np.ndarray", second: "np.ndarray") -> float:
    """McNemar's exact test, two-sided: how likely so unequal a split of the images that only one gets right is."""
    from scipy.stats import binomtest

    only_first, only_second = int((first & ~second).sum()), int((second & ~first).sum())
    if only_first == only_second:
        return 1.0
    return float(binomtest(only_first, only_first + only_second).pvalue)


def rank_correlation(xs: "np.ndarray", ys: "np.ndarray") -> tuple[float, tuple[float, float]]:
    """Spearman's, with an interval that excludes 0 only where at most 5 % of all orders are as far from it.

    Of four values even the same order is not that rare, so that the interval always holds 0.
    """
    import numpy as np
    from scipy.stats import rankdata

    def scores(values: "np.ndarray") -> "np.ndarray":
        ranks = rankdata(values)
        centered = ranks - ranks.mean()
        return np.asarray(centered / max(float((centered**2).sum()) ** 0.5, 1e-12))

    first, second, count = scores(np.asarray(xs)), scores(np.asarray(ys)), len(xs)
    if count <= MOST_PERMUTED:
        by_chance = np.sort(np.abs(np.array(list(permutations(second))) @ first).round(9))[::-1]
        half = float(by_chance[math.floor(0.05 * len(by_chance))])
    else:
        half = 1.96 / (count - 1) ** 0.5  # the spread of by_chance, which is close to normal
    value = round(float(first @ second), 9)
    return value, (max(-1.0, value - half), min(1.0, value + half))


def fitted_slope(xs: "np.ndarray", ys: "np.ndarray") -> tuple[float, float, tuple[float, float] | None]:
    """Slope and intercept by least squares, and the slope's 95 % interval from its standard error.

    By the t distribution with n - 2 degrees of freedom; two points have no interval.
    """
    import numpy as np
    from scipy.special import stdtrit

    spread = ((xs - xs.mean()) ** 2).sum()
    slope = float(((xs - xs.mean()) * (ys - ys.mean())).sum() / spread)
    intercept = float(ys.mean() - slope * xs.mean())
    if len(xs) < 3:
        return slope, intercept, None
    residuals = ys - intercept - slope * xs
    half = float(stdtrit(len(xs) - 2, 0.975) * np.sqrt((residuals**2).sum() / (len(xs) - 2) / spread))
    return slope, intercept, (slope - half, slope + half)

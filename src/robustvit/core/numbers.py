"""Numbers as settings write them, their types, and intervals for fractions of images."""

from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, Field

if TYPE_CHECKING:
    import numpy as np


def parse_number(value: Any) -> Any:
    """`"8/255"` as a number; anything else is left to the type check."""
    if not isinstance(value, str):
        return value
    above, slash, below = value.partition("/")
    try:
        return float(Fraction(above.strip()) / Fraction(below.strip() if slash else 1))
    except ZeroDivisionError:
        raise ValueError(f"'{value}' divides by zero") from None
    except (ValueError, OverflowError):
        raise ValueError(f"'{value}' is not a number or a fraction such as 8/255") from None


def format_fraction(value: float) -> str:
    """`8/255` where the number is so many 255ths (to a hundredth), `1/3` where no short decimal is equal, else the
    number; `parse_number` reads all back."""
    if float(f"{value:.3g}") != value and value > 0:
        levels = f"{value * 255:.2f}".rstrip("0").rstrip(".")
        for text in (f"{levels}/255", str(Fraction(value).limit_denominator(999))):
            if parse_number(text) == value and len(f"{value:.15g}") > 12:
                return text
    return f"{value:.15g}" if float(f"{value:.15g}") == value else repr(value)


Count = Annotated[int, Field(ge=1)]

Number = Annotated[float, BeforeValidator(parse_number), Field(allow_inf_nan=False)]
"""A float that may be written as a fraction."""

UnitInterval = Annotated[Number, Field(ge=0, le=1)]
NonNegative = Annotated[Number, Field(ge=0)]
Positive = Annotated[Number, Field(gt=0)]


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


def mcnemar_p_value(first: "np.ndarray", second: "np.ndarray") -> float:
    """McNemar's exact test, two-sided: how likely so unequal a split of the images that only one gets right is."""
    from scipy.stats import binomtest

    only_first, only_second = int((first & ~second).sum()), int((second & ~first).sum())
    if only_first == only_second:
        return 1.0
    return float(binomtest(only_first, only_first + only_second).pvalue)

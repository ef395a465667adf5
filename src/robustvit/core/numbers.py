"""Numbers as settings take and print them."""

from fractions import Fraction
from typing import Annotated, Any

from pydantic import BeforeValidator, Field


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
    """`8/255` where the number is so many 255ths (to a hundredth), else the number; `parse_number` reads both back."""
    text = f"{value * 255:.2f}".rstrip("0").rstrip(".") + "/255"
    if float(f"{value:.3g}") != value and value > 0 and parse_number(text) == value:
        return text
    return f"{value:.15g}" if float(f"{value:.15g}") == value else repr(value)


Count = Annotated[int, Field(ge=1)]

Number = Annotated[float, BeforeValidator(parse_number), Field(allow_inf_nan=False)]
"""A float that may be written as a fraction."""

UnitInterval = Annotated[Number, Field(ge=0, le=1)]
NonNegative = Annotated[Number, Field(ge=0)]
Positive = Annotated[Number, Field(gt=0)]

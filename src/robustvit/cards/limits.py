"""Lowest accuracies that a card must have, for a check in continuous integration."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from robustvit.cards.plan import CardPlan
from robustvit.core.errors import UserError, nearest
from robustvit.core.numbers import parse_number
from robustvit.core.summary import measure_text
from robustvit.reporting import Card

_ROUNDING = 1e-9
"""Of a number: 75 of 150 outcomes, summed image by image, may be an accuracy of 0.49999999999999994."""


@dataclass(frozen=True)
class Limit:
    """The lowest accuracy of a line that is enough."""

    name: str
    percent: float

    def __str__(self) -> str:
        return f"{self.percent:g} %"


def parse_limits(texts: Iterable[str], known: Collection[str]) -> list[Limit]:
    """`robust=40`, for lines that the card has."""
    limits = []
    for text in texts:
        name, equals, percent = text.partition("=")
        if not equals:
            raise UserError(f"--fail-under {text}: expected NAME=PERCENT, such as robust=40")
        if name not in known:
            raise UserError(f"--fail-under {text}: the card has no '{name}'{nearest(name, list(known))}")
        try:
            value = parse_number(percent)
        except ValueError as error:
            raise UserError(f"--fail-under {text}: {error}") from None
        if not 0 <= value <= 100:
            raise UserError(f"--fail-under {text}: a percentage is from 0 to 100")
        limits.append(Limit(name, value))
    return limits


def check_planned(limits: Iterable[Limit], plan: CardPlan) -> None:
    """Before any work: what won't be on the card, or is no fraction of images, can't be compared."""
    for limit in limits:
        if reason := plan.missing(limit.name):
            raise UserError(f"--fail-under {limit.name}: the card won't have it ({reason})")
        if plan.kind(limit.name) not in (None, "accuracy", "fraction"):
            raise _no_fraction(limit.name)


def _no_fraction(name: str) -> UserError:
    return UserError(
        f"--fail-under {name}: takes accuracies and other fractions of images, which are higher where a model is "
        f"better; {name} is none"
    )


def under_limit(card: Card, limits: Iterable[Limit]) -> tuple[list[str], list[str]]:
    """What is under its limit, and what isn't but could be by its interval; a clause each."""
    under, unsure = [], []
    for limit in limits:
        for model, cell in zip(card.models, card.line(limit.name).cells, strict=True):
            if cell.measure is None:
                raise UserError(f"--fail-under {limit.name}: can't be compared with {limit} ({cell.missing})")
            if not cell.measure.is_fraction:
                raise _no_fraction(limit.name)
            least = limit.percent / 100
            low, high = cell.measure.interval or (cell.measure.value, cell.measure.value)
            holds = low <= least <= high
            said = f"{limit.name} of {model.name} is {measure_text(cell.measure)}"
            if cell.measure.value < least - _ROUNDING:
                under.append(f"{said}, lower than {limit}" + (", which is within the interval" if holds else ""))
            elif holds:
                unsure.append(f"{said}, not lower than {limit}, but the limit is within the interval")
    return under, unsure

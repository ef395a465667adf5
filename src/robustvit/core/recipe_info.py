"""Description of a recipe or sweep: where it comes from, what it needs, which accuracy to expect."""

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from robustvit.core.component import settings


@settings
class Expectation:
    """An accuracy that a paper prints for a recipe, or that this project measured."""

    suite: str
    """As `evaluate --suite` takes it; `clean`: without an attack. The threat is the recipe's."""
    value: float
    unit: str = "%"
    paper: str = ""
    """Its title; empty: measured by this project."""
    table: str = ""
    """Table, figure or section of the paper."""
    row: str = ""
    measured_with: str = ""
    """For this project's own numbers: version of torch, threads, images."""
    note: str = ""
    """In what it differs from training and evaluating the recipe as it is."""

    def __post_init__(self) -> None:
        if bool(self.paper) == bool(self.measured_with):
            raise ValueError("a number is either from a paper (paper) or this project's own (measured_with)")


@settings
class RecipeInfo:
    """Shown by `list`, `check` and reports; no part of what a resumed run is compared by."""

    about: str = ""
    """One line."""
    paper: str = ""
    """Title of the paper that the settings are from."""
    hardware: str = ""
    """Of the paper, or of this project where it was run; empty: not printed."""
    time: str = ""
    """On that hardware; empty: not printed."""
    group: str = ""
    """Label of the runs that a plot of scaling joins by a line, such as the pre-training data."""
    needs: Mapping[str, str] = field(default_factory=dict)
    """What to bring along: data, weights, generated images."""
    was_run: bool = False
    """At full scale, by this project."""
    expect: tuple[Expectation, ...] = ()
    """Numbers that the paper reports, or that were measured."""

    @property
    def headline(self) -> str:
        """`paper: 72.34 % clean, 41.78 % autoattack`; several rows of a sweep as a range."""
        if not self.expect:
            return ""
        source = self.expect[0].paper
        numbers = [number for number in self.expect if number.paper == source]
        plain = [number for number in numbers if not number.note]
        values: dict[tuple[str, str], list[float]] = {}
        for number in plain or [number for number in numbers if number.note == numbers[0].note]:
            values.setdefault((number.unit, number.suite), []).append(number.value)
        text = ", ".join(f"{_range(group)} {unit} {suite}" for (unit, suite), group in values.items())
        note = "" if plain else f" ({numbers[0].note})"
        return f"{'paper' if source else 'ours'}: {text}{note}"


def _range(values: list[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"


_KEYS = tuple(RecipeInfo.__dataclass_fields__)


def with_info(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The same settings with what describes them under one key, `info`."""
    info = {key: tree[key] for key in _KEYS if key in tree}
    rest = {key: value for key, value in tree.items() if key not in info}
    if not info:
        return rest
    if isinstance(info.get("expect"), list):
        info["expect"] = [number for item in info["expect"] for number in _each(item, info.get("paper", ""))]
    return {**rest, "info": {**rest.get("info", {}), **info}}


def info_of(tree: Mapping[str, Any]) -> RecipeInfo:
    return RecipeInfo(**with_info(tree).get("info", {}))


def _each(item: Any, paper: Any) -> list[Any]:
    """`values: {clean: 72.3, autoattack: 41.8}` is short for one item per suite; the paper is the recipe's."""
    if not isinstance(item, Mapping):
        return [item]
    if "measured_with" not in item:
        item = {"paper": paper, **item}
    values = item.get("values")
    if not isinstance(values, Mapping):
        return [item]
    shared = {key: value for key, value in item.items() if key != "values"}
    return [{"suite": suite, "value": value, **shared} for suite, value in values.items()]

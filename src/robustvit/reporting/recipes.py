"""What recipes say: the settings in which they differ, and the accuracies to expect."""

from collections.abc import Sequence
from typing import Any

from robustvit.core.recipe_info import Expectation, info_of
from robustvit.reporting.read import Run

ABSENT = "-"


def differences(runs: Sequence[Run]) -> list[tuple[str, list[str]]]:
    """(setting, its value in each run), for runs that hold a recipe; only the settings in which they differ."""
    recipes = [_flat(run.settings, "") for run in runs if run.recipe]
    names = sorted({name for settings in recipes for name in settings})
    rows = [(name, [settings.get(name, ABSENT) for settings in recipes]) for name in names]
    only_phase = "" if any(name.startswith("phases.1.") for name in names) else "phases.0."
    settings = [row for row in rows if row[0].partition(".")[0] not in ("name", "info")]
    return [(name.removeprefix(only_phase), values) for name, values in settings if len(set(values)) > 1]


def expectations(runs: Sequence[Run]) -> list[tuple[str, str, str, str]]:
    """Run, suite, value and source of each."""
    return [(run.name, one.suite, f"{one.value:g} {one.unit}", _source(one)) for run in runs for one in _expected(run)]


def _flat(value: Any, path: str) -> dict[str, str]:
    """`{"phases": [{"epochs": 3}]}` as `{"phases.0.epochs": "3"}`."""
    has_maps = isinstance(value, list) and any(isinstance(item, dict) for item in value)
    items = value.items() if isinstance(value, dict) else enumerate(value) if has_maps else None
    if items is None:
        return {path: "none" if value is None else str(value)}
    return {name: text for key, item in items for name, text in _flat(item, f"{path}.{key}".strip(".")).items()}


def _expected(run: Run) -> tuple[Expectation, ...]:
    try:
        return info_of(run.settings).expect
    except (ValueError, TypeError, AttributeError):  # a recipe that somebody edited
        return ()


def _source(one: Expectation) -> str:
    source = f"paper: {one.paper}" if one.paper else f"this project, {one.measured_with}"
    return ", ".join(filter(None, (source, one.table, one.row, one.note)))

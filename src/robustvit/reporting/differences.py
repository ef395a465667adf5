"""Recipes side by side: only the settings in which they differ."""

from collections.abc import Sequence
from typing import Any

import yaml

from robustvit.reporting.read import Run

ABSENT = "-"


def differences(runs: Sequence[Run]) -> list[tuple[str, list[str]]]:
    """(setting, its value in each run), for runs that hold a recipe."""
    recipes = [_settings(run.recipe) for run in runs if run.recipe]
    names = sorted({name for settings in recipes for name in settings})
    rows = [(name, [settings.get(name, ABSENT) for settings in recipes]) for name in names]
    only_phase = "" if any(name.startswith("phases.1.") for name in names) else "phases.0."
    settings = [row for row in rows if row[0].partition(".")[0] not in ("name", "info")]
    return [(name.removeprefix(only_phase), values) for name, values in settings if len(set(values)) > 1]


def _settings(recipe: str) -> dict[str, str]:
    try:
        return _flat(yaml.safe_load(recipe), "")
    except (yaml.YAMLError, ValueError, RecursionError):
        return {}


def _flat(value: Any, path: str) -> dict[str, str]:
    """`{"phases": [{"epochs": 3}]}` as `{"phases.0.epochs": "3"}`."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if _holds_maps(value) else None
    if items is None:
        return {path: "none" if value is None else str(value)}
    return {name: text for key, item in items for name, text in _flat(item, f"{path}.{key}".strip(".")).items()}


def _holds_maps(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(item, dict) for item in value)

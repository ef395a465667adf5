"""A recipe in a notebook: what it changes of the defaults, what its paper reports, and every setting to unfold."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import yaml
from pydantic.dataclasses import is_pydantic_dataclass

from robustvit.core.component import to_dict
from robustvit.core.figures import Table
from robustvit.core.notebook import Sheet
from robustvit.core.recipe_info import RecipeInfo

_LEFT_OUT = ("name", "info")
"""Which the title and the caption say."""


def recipe_sheet(recipe: Any, name: str, info: RecipeInfo) -> Sheet:
    """Of any settings class that has a name and a description."""
    rows = tuple((path, _in_a_line(value)) for path, value in _rows(changed_settings(recipe)))
    tables = [Table("", ("setting", "value"), rows)]
    if info.expect:
        numbers = tuple((one.suite, f"{one.value:g} {one.unit}", _source(one.paper, one.table)) for one in info.expect)
        tables.append(Table("Expected", ("suite", "accuracy", "source"), numbers))
    facts = {"paper": info.paper, "hardware": info.hardware, "time": info.time, **info.needs}
    remarks = tuple(f"{title}: {text}" for title, text in facts.items() if text)
    whole = yaml.safe_dump(to_dict(recipe), sort_keys=False, allow_unicode=True)
    return Sheet(name, info.about, tuple(tables), remarks=remarks, texts={"Every setting": whole})


def changed_settings(value: Any) -> Any:
    """Plain data with the settings that differ from their defaults; a component keeps its name."""
    if is_pydantic_dataclass(type(value)):
        fields = dataclasses.fields(value)
        kept = {one.name: getattr(value, one.name) for one in fields if getattr(value, one.name) != _default(one)}
        name = getattr(type(value), "name", None)
        named = {"name": name} if isinstance(name, str) and all(one.name != "name" for one in fields) else {}
        return {**named, **{key: changed_settings(item) for key, item in kept.items()}}
    if isinstance(value, list | tuple):
        return [changed_settings(item) for item in value]
    return to_dict(value)


def _default(field: Any) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _rows(tree: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """The settings of a single phase next to the others, where a recipe may have them, too."""
    phases = tree.get("phases", [])
    rows = [(key, value) for key, value in tree.items() if key not in (*_LEFT_OUT, "phases")]
    for number, phase in enumerate(phases):
        prefix = f"phases.{number}." if len(phases) > 1 else ""
        rows += [(f"{prefix}{key}", value) for key, value in phase.items()]
    return rows


def _in_a_line(value: Any) -> str:
    if isinstance(value, dict) and set(value) == {"name"}:
        return str(value["name"])
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, allow_unicode=True, width=10_000)
    return text.removesuffix("...\n").strip()


def _source(paper: str, table: str) -> str:
    return ", ".join(filter(None, (paper, table))) or "this project"

"""The accuracies that a run's recipe says to expect: a paper's, or this project's own."""

from collections.abc import Sequence

import yaml

from robustvit.core.finding import Table
from robustvit.core.recipe_info import RecipeInfo, info_of
from robustvit.reporting.findings import Shown
from robustvit.reporting.read import Run


def expectations(runs: Sequence[Run]) -> list[tuple[str, Shown]]:
    return [(run.name, _shown(info)) for run in runs if (info := _info(run.recipe)).expect]


def _info(recipe: str) -> RecipeInfo:
    try:
        tree = yaml.safe_load(recipe)
        return info_of(tree) if isinstance(tree, dict) else RecipeInfo()
    except (yaml.YAMLError, ValueError, TypeError, AttributeError, RecursionError):  # a recipe that somebody edited
        return RecipeInfo()


def _shown(info: RecipeInfo) -> Shown:
    rows = tuple(
        (
            one.suite,
            f"{one.value:g} {one.unit}",
            f"paper: {one.paper}" if one.paper else f"this project, {one.measured_with}",
            " ".join(filter(None, (one.table, one.row))),
            one.note,
        )
        for one in info.expect
    )
    return Shown(
        title="Expected by the recipe",
        caption="Of the recipe as it ships; settings that were changed for this run may lead elsewhere.",
        tables=(Table("Expected accuracy", ("suite", "value", "source", "where", "note"), rows),),
        charts=(),
        galleries=(),
        command="",
    )

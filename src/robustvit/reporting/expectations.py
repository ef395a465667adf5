"""The accuracies that recipes say to expect: a paper's, or this project's own."""

from collections.abc import Sequence

import yaml

from robustvit.core.recipe_info import Expectation, RecipeInfo, info_of
from robustvit.reporting.read import Run


def expectations(runs: Sequence[Run]) -> list[tuple[str, str, str, str]]:
    """Run, suite, value and source of each."""
    return [
        (run.name, one.suite, f"{one.value:g} {one.unit}", _source(one)) for run in runs for one in _info(run).expect
    ]


def _info(run: Run) -> RecipeInfo:
    try:
        tree = yaml.safe_load(run.recipe)
        return info_of(tree) if isinstance(tree, dict) else RecipeInfo()
    except (yaml.YAMLError, ValueError, TypeError, AttributeError, RecursionError):  # a recipe that somebody edited
        return RecipeInfo()


def _source(one: Expectation) -> str:
    source = f"paper: {one.paper}" if one.paper else f"this project, {one.measured_with}"
    return ", ".join(filter(None, (source, one.table, one.row, one.note)))

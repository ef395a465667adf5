"""The run that points of a sweep start from."""

from pathlib import Path

from robustvit.training.base_recipe import is_phase_setting
from robustvit.training.recipe import Recipe
from robustvit.training.sweep_grid import OF_SWEEP, Point, Sweep


def first_point(sweep: Sweep, point: Point) -> Point | None:
    """The run that a point starts from: the recipe `first` with the point's settings of the whole recipe."""
    recipe = sweep.first_of(point)
    if recipe is None:
        return None
    tops = {path: path.partition(".")[0] for path in point.settings}
    shared = {path for path, top in tops.items() if not (top in (*OF_SWEEP, "phases") or is_phase_setting(top, Recipe))}
    return Point({"recipe": recipe, **{path: point.settings[path] for path in point.settings if path in shared}})


def first_folder(root: Path, first: Point) -> Path:
    return root / f"first-{first.folder}"

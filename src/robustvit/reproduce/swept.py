"""Arms that are runs of a sweep: their results by seed."""

from collections.abc import Mapping, Sequence
from typing import Any

from robustvit.core.errors import UserError
from robustvit.core.result import Result
from robustvit.core.result_files import control_of
from robustvit.reproduce.entries import Arm, Small
from robustvit.training.sweep_finding import Outcome
from robustvit.training.sweep_grid import Point, Sweep

Outcomes = Sequence[tuple[Point, Outcome]]


def swept_results(form: Small, sweep: Sweep, outcomes: Outcomes) -> dict[str, list[Result]]:
    """By arm; raises where a run that one of them needs has failed."""
    return {name: _arm_results(sweep, outcomes, arm) for name, arm in form.arms.items()}


def points_of(sweep: Sweep, arm: Arm) -> dict[Any, Point]:
    """The runs of an arm by their seed."""
    found: dict[Any, Point] = {}
    for point in sweep.points():
        if all(_setting(point.settings, path) == value for path, value in arm.of.items()):
            seed = point.settings.get("seed")
            if seed in found:
                raise UserError(f"{arm.of}: {found[seed].title} and {point.title} are both of this kind")
            found[seed] = point
    if not found:
        raise UserError(f"{arm.of}: no run of the sweep '{sweep.name}' has these settings")
    return found


def _setting(tree: Any, path: str) -> Any:
    """`optimizer.opt` of {optimizer: {opt: sgd}} as of {optimizer.opt: sgd}; None where it is not set."""
    if not isinstance(tree, Mapping):
        return None
    for name, value in tree.items():
        if name == path:
            return value
        if path.startswith(f"{name}."):
            return _setting(value, path[len(name) + 1 :])
    return None


def _arm_results(sweep: Sweep, outcomes: Outcomes, arm: Arm) -> list[Result]:
    known = {point.folder: outcome for point, outcome in outcomes}
    results = []
    for _, point in sorted(points_of(sweep, arm).items(), key=lambda item: str(item[0])):
        outcome = known[point.folder]
        if isinstance(outcome, UserError):
            raise UserError(f"{point.title}: {outcome}")
        result = _result(sweep, outcome, arm)
        found = control_of(result) if arm.control else result
        if found is None:
            raise UserError(f"{point.title}: {result.title} has no control; only a search has one")
        results.append(found)
    return results


def _result(sweep: Sweep, outcome: tuple[Result, ...], arm: Arm) -> Result:
    suite = 0 if arm.suite is None else [str(one) for one in sweep.suites].index(arm.suite)
    head = 0 if arm.head is None else sweep.heads.index(arm.head)
    return outcome[head * len(sweep.suites) + suite]

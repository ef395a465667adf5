"""What the trainings of a sweep take, and their sum."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from robustvit.core.errors import UserError
from robustvit.core.progress import format_seconds
from robustvit.planning.hardware import Hardware, hardware_from
from robustvit.planning.plan import Plan, plan
from robustvit.training.recipe import Recipe, recipe_from
from robustvit.training.sweep import check_sweep
from robustvit.training.sweep_first import first_point
from robustvit.training.sweep_grid import Sweep


@dataclass(frozen=True)
class SweepPlan:
    """By the titles of the points; runs that others start from are named after these."""

    plans: Mapping[str, Plan]

    @property
    def operations(self) -> float:
        return sum(each.operations for each in self.plans.values())

    @property
    def seconds(self) -> tuple[float, float]:
        """One after the other, the least and the most."""
        least, most = (sum(each.seconds[i] for each in self.plans.values()) for i in range(2))
        return least, most


def plan_sweep(sweep: Sweep, hardware: Hardware | str | None = None, images: int | None = None) -> SweepPlan:
    """Of every training, on so many `images` where the data are elsewhere; evaluations are not part of it."""
    plans: dict[str, Plan] = {}
    if isinstance(hardware, str):
        hardware_from(hardware)  # a mistake in it is no point's

    measured: list[tuple[Recipe, Plan]] = []

    def planned(recipe: Recipe) -> Plan:
        """Runs that differ in their seeds alone take the same."""
        unseeded = replace(recipe, seed=0)
        for known, made in measured:
            if known == unseeded:
                return made
        measured.append((unseeded, plan(recipe, hardware=hardware, images=images)))
        return measured[-1][1]

    for point, recipe in check_sweep(sweep):
        try:
            if (first := first_point(sweep, point)) is not None and f"first: {first.title}" not in plans:
                plans[f"first: {first.title}"] = planned(recipe_from(sweep.recipe_of(first), first.overrides))
            plans[point.title] = planned(recipe)
        except UserError as error:
            raise UserError(f"{point.title}: {error}") from None
    return SweepPlan(plans)


def sweep_text(planned: SweepPlan) -> str:
    """A line for each run and one for all."""
    lines = [(title, each.operations, each.seconds) for title, each in planned.plans.items()]
    lines.append((f"all {len(lines)} runs, one after the other", planned.operations, planned.seconds))
    width = max(len(title) for title, _, _ in lines)
    return "\n".join(f"{title:<{width}}  {work / 1e15:.3g} PFLOP, {_time(seconds)}" for title, work, seconds in lines)


def _time(seconds: tuple[float, float]) -> str:
    low, high = map(format_seconds, seconds)
    return low if low == high else f"{low} to {high}"

"""Runs of a sweep that differ in the seed alone: means with intervals over seeds, and differences paired by seed."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from robustvit.core.figures import Table, percent
from robustvit.core.finding import interval_text
from robustvit.core.numbers import mean_interval
from robustvit.core.result import Measure
from robustvit.training.sweep_grid import Point, yaml_text

SEED = "seed"
Measures = Mapping[str, Measure]
"""Of a run, by name."""


@dataclass(frozen=True)
class Group:
    """Runs with the same settings but for the seed."""

    point: Point
    """Without the seed, unless each run is a group of its own."""
    runs: Mapping[str, Measures]
    """By seed."""

    def mean(self) -> dict[str, Measure]:
        """Over the seeds; the interval of a single run is that over images."""
        names = dict.fromkeys(name for measures in self.runs.values() for name in measures)
        return {name: _mean([one[name] for one in self.runs.values() if name in one]) for name in names}


def grouped(done: Sequence[tuple[Point, Measures]]) -> list[Group]:
    """By all settings but the seed, where there are several such groups of several seeds."""
    groups: dict[str, Group] = {}
    for point, measures in done:
        rest = without(point, SEED)
        group = groups.setdefault(rest.title, Group(rest, {}))
        groups[rest.title] = replace(group, runs={**group.runs, yaml_text(point.settings.get(SEED)): measures})
    several = len(groups) > 1 and any(len(group.runs) > 1 for group in groups.values())
    return list(groups.values()) if several else [Group(point, {"": measures}) for point, measures in done]


def without(point: Point, *names: str) -> Point:
    return Point({name: value for name, value in point.settings.items() if name not in names})


def seed_table(groups: Sequence[Group]) -> Table:
    """A row for each group: means, intervals, how many seeds."""
    names = _names(groups)
    measures = list(dict.fromkeys(name for group in groups for name in group.mean()))
    rows = []
    for group in groups:
        means = group.mean()
        cells = [cell for name in measures for cell in _mean_cells(means.get(name), len(group.runs))]
        rows.append((*_set_to(group.point, names), *cells, str(len(group.runs))))
    columns = [column for name in measures for column in (name, f"95 % ({name})")]
    return Table("Means over seeds, with 95 % intervals over seeds", (*names, *columns, "seeds"), tuple(rows))


def difference_tables(groups: Sequence[Group], setting: str | None) -> tuple[Table, ...]:
    """For each measure: runs with the first value of a setting minus those with the second, seed by seed.

    Also how much that difference changes from the first row, such as whether generated images help one model more.
    """
    if setting is None:
        return ()
    sides: dict[str, dict[str, Group]] = {}
    for group in groups:
        value = yaml_text(group.point.settings.get(setting))
        sides.setdefault(value, {})[without(group.point, setting).title] = group
    if len(sides) != 2:  # all runs of one of the values failed
        return ()
    (first_value, firsts), (second_value, seconds) = sides.items()
    pairs = [(group, seconds[rest]) for rest, group in firsts.items() if rest in seconds]
    names = [name for name in _names(groups) if name != setting]
    measures = list(dict.fromkeys(name for pair in pairs for group in pair for name in group.mean()))
    columns = (*names, "difference", "95 %", "change from the first row", "95 % (change)", "seeds")
    tables = []
    for name in measures:
        differences = [_differences(first, second, name) for first, second in pairs]
        rows = []
        for (group, _), own in zip(pairs, differences, strict=True):
            changes = {seed: own[seed] - differences[0][seed] for seed in own if seed in differences[0]}
            change = _points(list(changes.values())) if own is not differences[0] else ("", "")
            rows.append((*_set_to(group.point, names), *_points(list(own.values())), *change, str(len(own))))
        tables.append(
            Table(f"{name}, {first_value} minus {second_value} in points, paired by seed", columns, tuple(rows))
        )
    return tuple(tables)


def _differences(first: Group, second: Group, name: str) -> dict[str, float]:
    """By seed, of those that both have."""
    seeds = [seed for seed in first.runs if name in first.runs[seed] and name in second.runs.get(seed, {})]
    return {seed: first.runs[seed][name].value - second.runs[seed][name].value for seed in seeds}


def _mean(measures: Sequence[Measure]) -> Measure:
    if len(measures) == 1:
        return measures[0]
    values = np.array([one.value for one in measures])
    interval = _interval(values)
    within = None if interval is None else (max(0.0, interval[0]), min(1.0, interval[1]))
    return replace(measures[0], value=float(values.mean()), interval=within)


def _interval(values: np.ndarray) -> tuple[float, float] | None:
    """Seeds that all agree tell nothing about others."""
    return mean_interval(values, -math.inf, math.inf)


def _mean_cells(measure: Measure | None, seeds: int) -> tuple[str, str]:
    if measure is None:
        return "", ""
    return percent(measure.value), interval_text(measure) if seeds > 1 else ""


def _points(values: Sequence[float]) -> tuple[str, str]:
    """Mean and interval of differences, in percentage points."""
    if not values:
        return "", ""
    interval = _interval(np.array(values))
    text = "" if interval is None else f"{100 * interval[0]:+.1f} to {100 * interval[1]:+.1f}"
    return f"{100 * sum(values) / len(values):+.1f}", text


def _names(groups: Sequence[Group]) -> list[str]:
    return list(dict.fromkeys(name for group in groups for name in group.point.settings))


def _set_to(point: Point, names: Sequence[str]) -> list[str]:
    return [yaml_text(point.settings[name]) if name in point.settings else "" for name in names]

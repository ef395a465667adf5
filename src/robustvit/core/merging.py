"""Findings of several models, or on several kinds of images, as one: the lines of all in the same charts."""

import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from robustvit.core.figures import Chart, Heatmap, Line, Pictures, Table
from robustvit.core.finding import Finding

T = TypeVar("T")

MOST_LINES = 6
"""Of a chart, as many as there are colors; of more, the lines of each name get a chart of their own."""


def merged(findings: Mapping[str, Finding], header: str = "model") -> Finding:
    """One analysis of several cases, by their names: what has the same title is shown as one."""
    first = next(iter(findings.values()))
    if len(findings) == 1:
        return first
    arrays = {name: _renamed(name, finding) for name, finding in findings.items()}
    figures: list[Chart | Heatmap] = [
        *_charts(_by_title(findings, lambda one: [chart for chart in one.charts if isinstance(chart, Chart)])),
        *_heatmaps(_by_title(findings, lambda one: [map_ for map_ in one.charts if isinstance(map_, Heatmap)]), arrays),
    ]
    order = [figure.title for finding in findings.values() for figure in finding.charts]
    figures.sort(key=lambda figure: next(n for n, title in enumerate(order) if figure.title.startswith(title)))
    pictures, made, used = _pictures(_by_title(findings, lambda one: one.pictures), arrays)
    return Finding(
        first.title,
        said({name: finding.caption for name, finding in findings.items()}),
        tables=tuple(_tables(_by_title(findings, lambda one: one.tables), header)),
        charts=tuple(figures),
        pictures=tuple(pictures),
        facts={**first.facts, "cases": {name: finding.facts for name, finding in findings.items()}},
        arrays={new: array for one in arrays.values() for new, array in one.values() if new not in used} | made,
    )


def said(texts: Mapping[str, str]) -> str:
    """Several texts as one: what all say first, then what some say, with their names."""
    about: dict[str, list[str]] = {}
    for name, text in texts.items():
        for sentence in dict.fromkeys(_SENTENCES.split(text)):
            about.setdefault(sentence, []).append(name)
    groups: dict[str, list[str]] = {"": []}
    for sentence, names in about.items():
        groups.setdefault("" if len(names) == len(texts) else _listed(names), []).append(sentence)
    return " ".join(f"{names}: {' '.join(own)}" if names else " ".join(own) for names, own in groups.items() if own)


def _listed(names: Sequence[str]) -> str:
    return ("; " if any(", " in name for name in names) else ", ").join(names)


_SENTENCES = re.compile(r"(?<=[.!?]) (?=[A-Z0-9])")


_Arrays = dict[str, dict[str, tuple[str, np.ndarray]]]
"""By case and name: the name in the merged finding, and the numbers."""


def _by_title(
    findings: Mapping[str, Finding], parts: Callable[[Finding], Iterable[Any]]
) -> dict[str, list[tuple[str, Any]]]:
    found: dict[str, list[tuple[str, Any]]] = defaultdict(list)
    for name, finding in findings.items():
        for part in parts(finding):
            found[part.title].append((name, part))
    return found


def _renamed(case: str, finding: Finding) -> dict[str, tuple[str, np.ndarray]]:
    word = re.sub(r"[^A-Za-z0-9.=+-]+", "_", case)
    return {name: (f"{name}-{word}", np.asarray(array)) for name, array in finding.arrays.items()}


def _alike(parts: Sequence[tuple[str, T]], key: Callable[[T], Hashable]) -> Iterator[list[tuple[str, T]]]:
    """Groups that can be shown as one, in their order."""
    groups: dict[Hashable, list[tuple[str, T]]] = defaultdict(list)
    for name, part in parts:
        groups[key(part)].append((name, part))
    yield from groups.values()


def _tables(tables: Mapping[str, list[tuple[str, Table]]], header: str) -> Iterator[Table]:
    for title, same in tables.items():
        for group in _alike(same, lambda table: table.columns):
            rows = tuple((name, *row) for name, table in group for row in table.rows)
            yield Table(title, (header, *group[0][1].columns), rows)


def _charts(charts: Mapping[str, list[tuple[str, Chart]]]) -> Iterator[Chart]:
    for same in charts.values():
        for group in _alike(same, lambda chart: repr(replace(chart, lines=(), marks=(), note=""))):
            lines = [(name, line) for name, chart in group for line in chart.lines]
            whole = replace(
                group[0][1],
                marks=tuple(dict.fromkeys(mark for _, chart in group for mark in chart.marks)),
                note=" ".join(dict.fromkeys(chart.note for _, chart in group if chart.note)),
            )
            yield from _with_lines(whole, lines)


def _with_lines(chart: Chart, lines: Sequence[tuple[str, Line]]) -> Iterator[Chart]:
    """A line that all are compared with is drawn once, and in each chart if there are several."""
    named: dict[str, list[tuple[str, Line]]] = defaultdict(list)
    for case, line in lines:
        named[line.name].append((case, line))
    shared = [same[0][1] for same in named.values() if same[0][1].is_reference and len({line for _, line in same}) == 1]
    own = {name: same for name, same in named.items() if all(line.name != name for line in shared)}
    if len(own) <= 1 or sum(map(len, own.values())) + len(shared) <= MOST_LINES:
        order = [(case, line) for case, line in lines if line.name in own]
        shown = (replace(line, name=case if len(own) == 1 else f"{line.name}, {case}") for case, line in order)
        yield replace(chart, lines=(*shown, *shared))
        return
    for name, same in own.items():
        shown = (replace(line, name=case) for case, line in same)
        yield replace(chart, title=f"{chart.title}: {name}", lines=(*shown, *shared))


def _heatmaps(maps: Mapping[str, list[tuple[str, Heatmap]]], arrays: _Arrays) -> Iterator[Heatmap]:
    """One for each case, with the same colors for the same numbers."""
    for title, same in maps.items():
        values = [arrays[name][one.array][1] if one.array else one.values for name, one in same]
        limits = _limits(same[0][1], [np.array(value, dtype=np.float64) for value in values])
        for name, one in same:
            array = arrays[name][one.array][0] if one.array else ""
            yield replace(one, title=f"{title}: {name}", array=array, limits=one.limits or limits)


def _limits(first: Heatmap, matrices: Sequence[np.ndarray]) -> tuple[float, float] | None:
    known = np.concatenate([matrix[np.isfinite(matrix)] for matrix in matrices])
    if not known.size or known.min() == known.max():
        return None
    if first.scale == "diverging":
        most = float(np.abs(known - first.center).max())
        return first.center - most, first.center + most
    return float(known.min()), float(known.max())


def _pictures(
    pictures: Mapping[str, list[tuple[str, Pictures]]], arrays: _Arrays
) -> tuple[list[Pictures], dict[str, np.ndarray], set[str]]:
    """The columns of all cases next to each other, their arrays, and the arrays that these replace.

    A column that is the same in all cases is shown once.
    """
    made: dict[str, np.ndarray] = {}
    used = set()
    shown = []
    for title, same in pictures.items():
        sized = [(name, (one, arrays[name][one.array][1].shape[-2:])) for name, one in same]
        groups = list(_alike(sized, lambda pair: (pair[0].rows, pair[1])))
        for group in groups:
            named = [(name, one) for name, (one, _) in group]
            columns = _columns(named, arrays)
            key = f"pictures-{len(made) + 1}"
            used |= {arrays[name][one.array][0] for name, one in named}
            made[key] = np.stack([column for _, column in columns], axis=1)
            of = "" if len(groups) == 1 else f": {', '.join(name for name, _ in named)}"
            shown.append(Pictures(f"{title}{of}", key, tuple(name for name, _ in columns), named[0][1].rows))
    return shown, made, used


def _columns(named: Sequence[tuple[str, Pictures]], arrays: _Arrays) -> list[tuple[str, np.ndarray]]:
    found: dict[str, list[tuple[str, np.ndarray]]] = defaultdict(list)
    for case, one in named:
        for number, column in enumerate(one.columns):
            found[column].append((case, arrays[case][one.array][1][:, number]))
    columns = []
    for column, same in found.items():
        groups: list[tuple[list[str], np.ndarray]] = []
        for case, pixels in same:
            known = next((cases for cases, other in groups if np.array_equal(other, pixels)), None)
            if known is None:
                groups.append(([case], pixels))
            else:
                known.append(case)
        columns += [(", ".join([column, *_shared(cases, len(named))]), pixels) for cases, pixels in groups]
    return columns


def _shared(cases: Sequence[str], total: int) -> list[str]:
    """What tells cases from the others: nothing where they are all, else what their names have in common, or these."""
    if len(cases) == total:
        return []
    words = [case.split(", ") for case in cases]
    return [word for word in words[0] if all(word in other for other in words)] or [_listed(cases)]

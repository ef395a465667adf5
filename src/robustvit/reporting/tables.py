"""The rows of the page's tables: comparable evaluations in groups, their attacks in short, what recipes say."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from typing import Any

import yaml

from robustvit.core.recipe_info import Expectation, info_of
from robustvit.core.result import StageResult
from robustvit.reporting.read import Evaluation, Run


@dataclass(frozen=True)
class Line:
    """An evaluation of a run."""

    run: Run
    run_number: int
    """From 1, as in the anchors of the page."""
    evaluation: Evaluation
    number: int
    """Among the evaluations of its run."""
    is_best: bool = False
    opens_eps: bool = False


@dataclass(frozen=True)
class Sweep:
    """One model at several eps; of several results at one eps the worst counts."""

    lines: dict[float, Line]

    @property
    def first(self) -> Line:
        return next(iter(self.lines.values()))


@dataclass(frozen=True)
class Group:
    """Evaluations with the same suite, norm and images, by eps."""

    suite: str
    norm: str
    data: str
    """What it is called on this page, and the rule that chose its images."""
    lines: tuple[Line, ...]

    @property
    def eps(self) -> dict[float, str]:
        """Each eps with its text, growing."""
        return {line.evaluation.threat.eps: line.evaluation.threat.eps_text for line in self.lines}

    @property
    def is_sweep(self) -> bool:
        """Whether some model met several eps."""
        return bool(self.lines[0].evaluation.result.stages) and any(len(sweep.lines) > 1 for sweep in self.sweeps)

    @property
    def sweeps(self) -> list[Sweep]:
        """A sweep for each model, in the order of the runs."""
        models: dict[tuple[int, str], dict[float, Line]] = {}
        for line in sorted(self.lines, key=lambda line: (line.run_number, -line.evaluation.robust.value)):
            models.setdefault((line.run_number, line.evaluation.weights), {})[line.evaluation.threat.eps] = line
        return [Sweep(dict(sorted(lines.items()))) for lines in models.values()]


def groups(runs: Sequence[Run]) -> list[Group]:
    """Those with the most attacks, then the most evaluations, first.

    Marked is the highest robust accuracy at an eps, where nothing casts doubt on it and a paired test tells it from
    every other.
    """
    lines = [
        Line(run, run_number, evaluation, number)
        for run_number, run in enumerate(runs, start=1)
        for number, evaluation in enumerate(run.evaluations, start=1)
        if evaluation.fits_table
    ]
    families: dict[tuple[str, str, tuple[str, str, str]], list[Line]] = {}
    for line in lines:
        families.setdefault(line.evaluation.family, []).append(line)
    ranked = sorted(families.items(), key=lambda item: (-len(item[1][0].evaluation.result.stages), -len(item[1])))
    names = data_names(runs)
    return [
        Group(suite, norm, f"{names[data]}, {data[1]}", tuple(_by_eps(members)))
        for (suite, norm, data), members in ranked
    ]


def data_names(runs: Sequence[Run]) -> dict[tuple[str, str, str], str]:
    """What each data is called: its title, with a piece of its fingerprint where that alone could mean several."""
    every = {evaluation.data: None for run in runs for evaluation in run.evaluations}
    titles = [(title, rule) for title, rule, _ in every]
    return {
        (title, rule, sha256): title if titles.count((title, rule)) == 1 else f"{title}, content {sha256[:8]}"
        for title, rule, sha256 in every
    }


def _by_eps(lines: Sequence[Line]) -> list[Line]:
    marked = []
    for _, same in groupby(sorted(lines, key=_eps), key=_eps):
        rivals = list(same)
        for place, line in enumerate(rivals):
            marked.append(replace(line, is_best=_is_best(line, rivals), opens_eps=place == 0))
    return marked


def _is_best(line: Line, rivals: Sequence[Line]) -> bool:
    """Of several results of one model, such as with other seeds, all must be above doubt and higher."""
    weights = line.evaluation.weights
    own = [other.evaluation.result for other in rivals if other.evaluation.weights == weights]
    others = [other.evaluation.result for other in rivals if other.evaluation.weights != weights]
    if not others or any(not result.stages or result.is_doubtful for result in own):
        return False
    return all(result.is_higher(other) for result in own for other in others)


def _eps(line: Line) -> float:
    return line.evaluation.threat.eps


def attack_lines(stages: Sequence[StageResult]) -> list[tuple[StageResult, int]]:
    """Each attack, the same one towards several targets as one; and how many of its stages met no image."""
    return [
        (replace(_summed(same), name=name), sum(stage.num_images == 0 for stage in same))
        for name, same in _joined(stages)
    ]


def total(evaluation: Evaluation) -> StageResult:
    """All attacks of an evaluation as one."""
    return replace(_summed(evaluation.result.stages), robust_accuracy=evaluation.robust.value)


def _summed(stages: Sequence[StageResult]) -> StageResult:
    summed = ("num_fooled", "num_unverified", "seconds", "passes")
    sums = {key: sum(getattr(stage, key) for stage in stages) for key in summed}
    return replace(stages[-1], num_images=stages[0].num_images, **sums)


def settings_text(evaluation: Evaluation) -> str:
    """Everything an evaluation depends on, as one YAML text."""
    result = evaluation.result
    attacks = {name: same[0].settings for name, same in _joined(result.stages)}
    whole = {
        "title": result.title,
        **({} if result.threat is None else {"threat": {"norm": result.threat.norm, "eps": result.threat.eps_text}}),
        **{key: value for key, value in asdict(result.provenance).items() if key not in ("command", "class_names")},
        **{key: value for key, value in result.details.items() if key != "attacks"},
    }
    text = as_yaml(whole)
    return f"{text}\n{as_yaml({'attacks': attacks}, flow=None)}" if attacks else text


def _joined(stages: Sequence[StageResult]) -> list[tuple[str, list[StageResult]]]:
    """`apgd-t/1`, `apgd-t/2`, ... in a row as `apgd-t/1 to 9`, if their settings are the same."""
    joined = []
    for (family, _), members in groupby(stages, key=lambda stage: (_family(stage.name), as_yaml(stage.settings))):
        same = list(members)
        last = same[-1].name.rpartition("/")[2]
        joined += [(f"{same[0].name} to {last}", same)] if family and len(same) > 1 else [(s.name, [s]) for s in same]
    return joined


def _family(name: str) -> str:
    family, _, target = name.rpartition("/")
    return family if target.isdigit() else ""


def as_yaml(value: Any, flow: bool | None = False) -> str:
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True, default_flow_style=flow, width=120).strip()


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

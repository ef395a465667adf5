"""Every table and figure of the papers as data: a YAML file for each paper in `papers/`."""

import shlex
from collections.abc import Mapping
from dataclasses import field
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from robustvit.core.component import settings
from robustvit.core.config import validated
from robustvit.core.errors import UserError, nearest
from robustvit.core.numbers import Count, Number
from robustvit.core.readers import read_yaml

_FOLDER = Path(str(resources.files("robustvit"))) / "reproduce"
_ROMAN = ("", "i", "ii", "iii", "iv", "v", "vi", "vii", "viii", "ix", "x", "xi", "xii")


@settings
class Arm:
    """What is compared, under one suite: runs of a sweep that share settings, one for each seed, or a given model."""

    of: Mapping[str, Any] = field(default_factory=dict)
    """Settings and their values, such as `optimizer.opt: sgd`, that the runs have."""
    model: str | None = None
    """Or a given one, such as zoo:speedrun."""
    suite: str | None = None
    """Of the sweep's; None: its first. Of a given model any suite or evaluator, or an analysis by conditions."""
    conditions: tuple[str, ...] = ()
    """Names or groups of conditions, such as `fog/*`: its accuracy is the mean over these; none: under all of them."""
    array: str = ""
    """Or what an analysis keeps of each image: `hits/0/*` is the mean over the second axis of its array `hits`, at 0 of
    the first; the last axis are the images."""
    clean: str | None = None
    """The condition without a change where the conditions are of another model, as in a transfer matrix."""
    control: bool = False
    """The control of the suite, such as random factors, in place of what was searched for."""
    eps: Number | None = None
    """Of a given model; None: that of the form."""
    head: str | None = None
    """Of a model with several, one of the sweep's heads."""
    paper: str = ""
    """The row of the paper among what the recipes and sweeps at full scale expect."""
    printed: Mapping[Literal["clean", "robust"], float] = field(default_factory=dict)
    """The paper's numbers in percent, where no recipe has them."""


@settings
class Comparison:
    """A difference between arms, which the paper has above 0."""

    claim: str
    label: str
    """Its row of the chart, in a few letters."""
    higher: tuple[str, ...] = ()
    """Names of arms; several are added, which makes a difference of differences."""
    lower: tuple[str, ...] = ()
    measure: Literal["robust", "clean"] = "robust"
    ranked: tuple[str, ...] = ()
    """Or arms of which the paper says that clean accuracy ranks them as the other does."""
    claimed: bool = True
    """Whether a direction is claimed; if not, the difference is shown without a verdict."""
    ours: bool = False
    """A control or an addition of this project: its verdict isn't counted among those of the paper's claims."""

    def __post_init__(self) -> None:
        if bool(self.higher) == bool(self.ranked) or len(self.higher) != len(self.lower):
            raise ValueError("higher and lower: as many arms in one as in the other, and at least one; or ranked")

    @property
    def arms(self) -> tuple[str, ...]:
        return (*self.higher, *self.lower, *self.ranked)


@settings
class Given:
    """Models as they are, without training: what they are compared on."""

    images: Count
    """Of the test set, chosen by seed 0."""
    data: str = "cifar10"
    eps: Number = 8 / 255
    """Of attacks in Linf."""


@settings
class Small:
    """What this machine can see of it: comparisons of a sweep's runs or of given models, or commands without any."""

    sweep: str | None = None
    given: Given | None = None
    commands: tuple[str, ...] = ()
    prepare: tuple[str, ...] = ()
    """Commands that come first: they make what the runs start from, where their recipes look for it."""
    time: str = ""
    column: str = ""
    """The paper's suite whose accuracies stand next to ours, where it prints any."""
    quantity: str = "accuracy"
    """What is compared, where arms are arrays of an analysis."""
    bounded: bool = True
    """Whether all of its values are from 0 to 1, as those of accuracies are."""
    arms: Mapping[str, Arm] = field(default_factory=dict)
    compare: tuple[Comparison, ...] = ()
    notes: tuple[str, ...] = ()
    """In what it differs from the paper, and what else the reader should know."""

    def __post_init__(self) -> None:
        if sum(map(bool, (self.sweep, self.given, self.commands))) != 1:
            raise ValueError("a small form has either a sweep, given models or commands")
        if bool(self.commands) == bool(self.compare):
            raise ValueError("compare: commands have no comparisons, a sweep and given models have some")
        if len({bool(one.ranked) for one in self.compare}) > 1:
            raise ValueError("compare: either differences or rankings, which have no unit in common")
        for name, arm in self.arms.items():
            if (self.given is None) != (arm.model is None) or (arm.model and not arm.suite):
                raise ValueError(f"arms: '{name}': a model and its suite belong to given models, which all have both")
            if self.given is None and arm.eps is not None:
                raise ValueError(
                    f"arms: '{name}': eps belongs to given models; runs of a sweep have that of their recipe"
                )
            if not (self.column or arm.array) and (arm.paper or "robust" in arm.printed):
                raise ValueError(f"arms: '{name}': has the paper's number, of which suite? say column: autoattack, ...")
        for name in (name for comparison in self.compare for name in comparison.arms):
            if name not in self.arms:
                raise ValueError(f"compare: no arm '{name}'{nearest(name, list(self.arms))}")

    @property
    def models(self) -> list[str]:
        """The given ones, each once."""
        return list(dict.fromkeys(arm.model for arm in self.arms.values() if arm.model is not None))


@settings
class Full:
    """How the paper's own numbers would be made, on a cluster."""

    sweeps: tuple[str, ...] = ()
    first: tuple[str, ...] = ()
    """Recipes that others start from: trained before all else, and not evaluated."""
    recipes: tuple[str, ...] = ()
    """Each trained, and evaluated by `suite`."""
    overrides: tuple[str, ...] = ()
    """Settings of these, such as checkpoints.every=10."""
    suite: str = "autoattack"
    images: Count | None = None
    """Of the test set, for `suite`; None: all."""
    commands: tuple[str, ...] = ()
    """Whatever else it takes, after these."""
    stored: tuple[Small, ...] = ()
    """Comparisons of sweeps at full scale, drawn as soon as their results are there."""

    def training(self, recipe: str) -> list[str]:
        """The words of the command that trains one of the recipes."""
        return ["robustvit", "train", recipe, *(word for one in self.overrides for word in ("-o", one))]

    def evaluation(self, run: str) -> str:
        """The command that evaluates a run."""
        images = f" --images {self.images}" if self.images else ""
        return f"robustvit evaluate {shlex.quote(run)} --suite {shlex.quote(self.suite)}{images}"


@settings
class Entry:
    """A table or figure of a paper."""

    name: str
    """Such as `beats-wrn/table-5`."""
    title: str
    claim: str
    full: Full | None = None
    small: Small | None = None
    needs: tuple[str, ...] = ()
    """Besides what the recipes say themselves."""
    no_full: str = ""
    """Why there is nothing to run at full scale."""
    no_small: str = ""
    """Why there is no small form."""

    def __post_init__(self) -> None:
        if (self.full is None) != bool(self.no_full) or (self.small is None) != bool(self.no_small):
            raise ValueError("each scale has either a form or a reason why it has none (no_full, no_small)")


@settings
class Paper:
    name: str
    title: str
    entries: Mapping[str, Entry]
    """By the last part of their names."""


@cache
def paper_names() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in (_FOLDER / "papers").glob("*.yaml")))


@cache
def load_paper(name: str) -> Paper:
    known = paper_names()
    if name not in known:
        raise UserError(f"no paper '{name}'{nearest(name, list(known))}")
    path = _FOLDER / "papers" / f"{name}.yaml"
    tree = read_yaml(path)
    roman = tree.pop("roman", False)
    trees: dict[str, dict[str, Any]] = {}
    for key, own in tree.pop("entries").items():
        kind, _, number = key.partition("-")
        shown = _ROMAN[int(number)].upper() if roman and kind == "table" else number
        given = _filled({word: value for word, value in own.items() if word != "where"}, own.get("where", {}))
        trees[key] = {**given, "name": f"{name}/{key}", "title": f"{kind.capitalize()} {shown}"}
    paper: Paper = validated(Paper, {**tree, "name": name, "entries": trees}, str(path))
    return paper


def _filled(tree: Any, where: Mapping[str, str]) -> Any:
    """With the words that `where` has in place of `{word}`: figures that differ in these alone share the rest."""
    if isinstance(tree, Mapping):
        return {key: _filled(value, where) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_filled(value, where) for value in tree]
    if isinstance(tree, str):
        for word, value in where.items():
            tree = tree.replace(f"{{{word}}}", value)
    return tree


def commands_below(commands: tuple[str, ...], root: Path) -> list[list[str]]:
    """Their words, with the folder around the runs in place of `runs/`."""
    split = [shlex.split(command) for command in commands]
    return [[str(root / word[5:]) if word.startswith("runs/") else word for word in words] for words in split]


def find_entries(what: str) -> list[Entry]:
    """Of a paper, or the one table or figure that `paper/table-2` names; Roman numbers are understood."""
    name, slash, part = what.lower().partition("/")
    paper = load_paper(name)
    if not slash:
        return list(paper.entries.values())
    kind, _, number = part.partition("-")
    key = f"{kind}-{_ROMAN.index(number)}" if number in _ROMAN[1:] else part
    if key not in paper.entries:
        known = ", ".join(paper.entries)
        raise UserError(f"{name}: no '{part}' in {paper.title}; there are {known}")
    return [paper.entries[key]]


@settings
class Seen:
    """What came of a comparison when this project ran the small form."""

    claim: str
    difference: float
    """Or the rank correlation."""
    interval: tuple[float, float] | None
    paper: float | None
    """Its difference, as a fraction; None: not printed."""
    verdict: str
    seeds: int
    images: int
    ranked: int = 0
    """How many models a rank correlation is over."""
    models: tuple[str, ...] = ()
    """That were given, each with eight digits of the fingerprint of its weights."""
    notes: tuple[str, ...] = ()
    """What the runs said that a reader should know, such as a search that found nothing."""
    ours: bool = False
    """As of the comparison."""


def seen_by_us() -> dict[str, tuple[Seen, ...] | str]:
    """By the name of the entry, for those whose small form was run; in words where commands have no verdict."""
    path = _FOLDER / "seen.yaml"
    kind = dict[str, tuple[Seen, ...] | str]
    seen: dict[str, tuple[Seen, ...] | str] = validated(kind, read_yaml(path), str(path))
    return seen

"""Suites of attacks by name: `clean`, `fgsm`, `pgd-N`, `pgd-NxR`, with settings after a colon."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from robustvit.attacks import APGD, FAB, FGSM, PGD, Attack, Restarts, Square
from robustvit.core.component import build, explain, registered, to_dict
from robustvit.core.errors import UserError, nearest


@dataclass(frozen=True)
class Stage:
    """One attack of a suite: it meets only images that every stage before has left standing."""

    name: str
    attack: Attack
    target_rank: int | None = None
    """Towards the class of this rank by the clean logits (1 is the predicted one); any wrong class counts as fooled."""

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "attack": to_dict(self.attack), "target_rank": self.target_rank}


@dataclass(frozen=True)
class Suite:
    """Attacks in order; robust accuracy is the worst case over them."""

    name: str
    stages: tuple[Stage, ...]

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "stages": [stage.to_dict() for stage in self.stages]}

    def fitted(self, num_classes: int) -> tuple["Suite", list[str]]:
        """The suite for so many classes, and what had to give way: ranks that don't exist, losses that need more."""
        stages = [stage for stage in self.stages if (stage.target_rank or 0) <= num_classes]
        notes = (
            []
            if len(stages) == len(self.stages)
            else [f"with {num_classes} classes, targeted stages have {num_classes - 1} targets"]
        )
        for number, stage in enumerate(stages):
            if num_classes < (3 if stage.target_rank is None else 4):
                plain = with_margin_loss(stage.attack)
                if plain != stage.attack:
                    stages[number] = replace(stage, attack=plain)
                    notes.append(
                        f"{stage.name}: the margin loss instead of DLR, which needs more than {num_classes} classes"
                    )
        return Suite(self.name, tuple(stages)), notes


@dataclass(frozen=True)
class SuitePattern:
    """A family of suite names: `robustvit list suites` shows the form, `make` builds the stages."""

    form: str
    about: str
    pattern: re.Pattern[str]
    make: Callable[[str, re.Match[str], dict[str, Any]], tuple[Stage, ...]]


def _one(name: str, attack: Attack) -> tuple[Stage, ...]:
    return (Stage(name, attack),)


def _clean(name: str, match: re.Match[str], options: dict[str, Any]) -> tuple[Stage, ...]:
    _no_options(name, options)
    return ()


def _pgd(name: str, match: re.Match[str], options: dict[str, Any]) -> tuple[Stage, ...]:
    if "steps" in options:
        raise UserError(f"suite '{name}': the number of steps stands in its name")
    attack: Attack = PGD(steps=int(match["steps"]), **options)
    times = int(match["times"] or 1)
    return _one(name, Restarts(inner=attack, times=times) if times > 1 else attack)


def _apgd_ce(name: str, match: re.Match[str], options: dict[str, Any]) -> tuple[Stage, ...]:
    attack = APGD(**options)
    return _one(name, Restarts(inner=attack, times=int(match["times"])) if match["times"] else attack)


def _autoattack(name: str, match: re.Match[str], options: dict[str, Any]) -> tuple[Stage, ...]:
    _no_options(name, options)
    return AUTOATTACK[match["version"] or "standard"]


def _no_options(name: str, options: dict[str, Any]) -> None:
    if options:
        raise UserError(f"suite '{name}' takes no settings: another set of attacks has another name")


def _towards(name: str, attack: Attack) -> tuple[Stage, ...]:
    """One stage for each of the nine classes after the predicted one."""
    return tuple(Stage(f"{name}/{rank - 1}", attack, rank) for rank in range(2, 11))


AUTOATTACK: dict[str, tuple[Stage, ...]] = {
    "standard": (
        Stage("apgd-ce", APGD(loss="ce")),
        *_towards("apgd-t", APGD(loss="dlr")),
        *_towards("fab-t", FAB()),
        Stage("square", Square()),
    ),
    "plus": (
        Stage("apgd-ce-x5", Restarts(inner=APGD(loss="ce"), times=5)),
        Stage("apgd-dlr-x5", Restarts(inner=APGD(loss="dlr"), times=5)),
        Stage("fab-x5", Restarts(inner=FAB(), times=5)),
        Stage("square", Square()),
        *_towards("apgd-t", APGD(loss="dlr")),
        *_towards("fab-t", FAB()),
    ),
    "rand": (
        Stage("apgd-ce-eot20", APGD(loss="ce", eot=20)),
        Stage("apgd-dlr-eot20", APGD(loss="dlr", eot=20)),
    ),
}
"""The three versions of AutoAttack (Croce and Hein 2020), a stage for each target."""


PATTERNS: list[SuitePattern] = [
    SuitePattern("clean", "no attack: accuracy alone", re.compile(r"clean"), _clean),
    SuitePattern(
        "fgsm",
        "one step to the border, from the image itself",
        re.compile(r"fgsm"),
        lambda name, match, options: _one(name, FGSM(**options)),
    ),
    SuitePattern(
        "pgd-N[xR]",
        "N steps of 1.5 eps/N on the cross-entropy from a uniform start, R restarts; "
        "e.g. pgd-40:loss=cw,step=2/255 or pgd-8:step=eps/8,start=none",
        re.compile(r"pgd-(?P<steps>[1-9]\d*)(?:x(?P<times>[1-9]\d*))?"),
        _pgd,
    ),
    SuitePattern(
        "apgd-ce[-xR]",
        "APGD on the cross-entropy, 100 steps: once, as inside AutoAttack, or R restarts",
        re.compile(r"apgd-ce(?:-x(?P<times>[1-9]\d*))?"),
        _apgd_ce,
    ),
    SuitePattern(
        "square",
        "Square alone, 5,000 queries: for models without gradients",
        re.compile(r"square"),
        lambda name, match, options: _one(name, Square(**options)),
    ),
    SuitePattern(
        "autoattack",
        "AutoAttack, standard: APGD-CE, APGD-T and FAB-T towards 9 classes each, Square; "
        "also autoattack-plus, and autoattack-rand for models that are random",
        re.compile(r"autoattack(?:-(?P<version>plus|rand))?"),
        _autoattack,
    ),
]


def suite_from(suite: Any) -> Suite:
    """A suite by name, or from a list of attacks or names."""
    if isinstance(suite, Suite):
        return suite
    if isinstance(suite, str):
        return _by_name(suite)
    if isinstance(suite, tuple(registered("attack").values())):
        return suite_from([suite])
    if isinstance(suite, Sequence) and suite:
        stages = tuple(stage for item in suite for stage in _stages(item))
        names = [stage.name for stage in stages]
        if len(set(names)) < len(names):
            stages = tuple(replace(stage, name=f"{i}/{stage.name}") for i, stage in enumerate(stages, start=1))
        return Suite("+".join(stage.name for stage in stages), stages)
    raise UserError(f"suite: a name such as 'pgd-20' or a list of attacks, not {suite!r}")


def _stages(item: Any) -> tuple[Stage, ...]:
    if isinstance(item, str):
        return _by_name(item).stages
    attack = build("attack", item)
    return (Stage(label(attack), attack),)


def _by_name(text: str) -> Suite:
    head, _, tail = text.partition(":")
    for family in PATTERNS:
        match = family.pattern.fullmatch(head)
        if not match:
            continue
        try:
            stages = family.make(text, match, _options(text, tail))
        except ValidationError as error:
            raise UserError(f"suite '{text}': {explain(error, 'attack')}") from None
        return Suite(text, stages)
    raise UserError(f"no suite '{text}'{nearest(head, [family.form for family in PATTERNS])}")


def _options(text: str, tail: str) -> dict[str, Any]:
    pairs = [pair.partition("=") for pair in tail.split(",")] if ":" in text else []
    if not all(key and equals and value for key, equals, value in pairs):
        raise UserError(f"suite '{text}': settings after the colon are key=value pairs, such as loss=cw,step=2/255")
    return {key: value for key, _, value in pairs}


def with_margin_loss(attack: Attack) -> Attack:
    """The same attack on the margin where it used DLR."""
    if isinstance(attack, Restarts):
        return replace(attack, inner=with_margin_loss(attack.inner))
    return replace(attack, loss="cw") if getattr(attack, "loss", None) == "dlr" else attack  # type: ignore[type-var]


def label(attack: Attack) -> str:
    """A short name that carries every setting that isn't the default."""
    if isinstance(attack, Restarts):
        return f"{label(attack.inner)} x{attack.times}"
    settings = to_dict(attack)
    name = settings.pop("name")
    try:
        usual = to_dict(type(attack)())
    except ValidationError:  # a wrapper that can't be made without an inner attack
        usual = {}
    changed = ",".join(f"{key}={value}" for key, value in settings.items() if usual.get(key) != value)
    return f"{name}:{changed}" if changed else name

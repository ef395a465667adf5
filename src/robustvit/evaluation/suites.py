"""Suites of attacks by name: `clean`, `fgsm`, `pgd-N`, `pgd-NxR`, with settings after a colon."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from robustvit.attacks import FGSM, PGD, Attack, Restarts
from robustvit.core.component import build, explain, registered, to_dict
from robustvit.core.errors import UserError, nearest


@dataclass(frozen=True)
class Stage:
    """One attack of a suite: it meets only images that every stage before has left standing."""

    name: str
    attack: Attack


@dataclass(frozen=True)
class Suite:
    """Attacks in order; robust accuracy is the worst case over them."""

    name: str
    stages: tuple[Stage, ...]

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "stages": [{"name": s.name, "attack": to_dict(s.attack)} for s in self.stages]}


@dataclass(frozen=True)
class SuitePattern:
    """A family of suite names: `robustvit list suites` shows the form, `make` builds the stages."""

    form: str
    about: str
    pattern: re.Pattern[str]
    make: Callable[[re.Match[str], dict[str, Any]], tuple[Attack, ...]]


def _clean(match: re.Match[str], options: dict[str, Any]) -> tuple[Attack, ...]:
    if options:
        raise UserError("suite 'clean' takes no settings")
    return ()


def _pgd(match: re.Match[str], options: dict[str, Any]) -> tuple[Attack, ...]:
    attack: Attack = PGD(steps=int(match["steps"]), **options)
    times = int(match["times"] or 1)
    return (Restarts(inner=attack, times=times) if times > 1 else attack,)


PATTERNS: list[SuitePattern] = [
    SuitePattern("clean", "no attack: accuracy alone", re.compile(r"clean"), _clean),
    SuitePattern(
        "fgsm",
        "one step to the border, from the image itself",
        re.compile(r"fgsm"),
        lambda match, options: (FGSM(**options),),
    ),
    SuitePattern(
        "pgd-N[xR]",
        "N steps of 1.5 eps/N on the cross-entropy from a uniform start, R restarts; "
        "e.g. pgd-40:loss=cw,step=2/255 or pgd-8:step=eps/8,start=none",
        re.compile(r"pgd-(?P<steps>[1-9]\d*)(?:x(?P<times>[1-9]\d*))?"),
        _pgd,
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
            stages = tuple(Stage(f"{i}/{stage.name}", stage.attack) for i, stage in enumerate(stages, start=1))
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
            attacks = family.make(match, _options(text, tail))
        except ValidationError as error:
            raise UserError(f"suite '{text}': {explain(error, 'attack')}") from None
        return Suite(text, tuple(Stage(text, attack) for attack in attacks))
    raise UserError(f"no suite '{text}'{nearest(head, [family.form for family in PATTERNS])}")


def _options(text: str, tail: str) -> dict[str, Any]:
    pairs = [pair.partition("=") for pair in tail.split(",")] if ":" in text else []
    if not all(key and equals and value for key, equals, value in pairs):
        raise UserError(f"suite '{text}': settings after the colon are key=value pairs, such as loss=cw,step=2/255")
    return {key: value for key, _, value in pairs}


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

"""Suites of attacks by name: `clean`, `fgsm`, `pgd-N`, `pgd-NxR-tT`, with settings after a colon."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from robustvit.attacks import (
    APGD,
    FAB,
    FGSM,
    GAMA,
    MIM,
    PGD,
    Attack,
    AttentionScaling,
    CarliniWagner,
    FromSurrogate,
    Restarts,
    Square,
    label,
)
from robustvit.core.component import build, explain, registered
from robustvit.core.errors import UserError, nearest
from robustvit.evaluation.attention_suites import is_setting, with_scaled_attention
from robustvit.evaluation.autoattack import AUTOATTACK, AUTOATTACK_L1, FAST_TARGETS, fast, towards
from robustvit.evaluation.stages import Stage, Suite

MakeStages = Callable[[str, re.Match[str], dict[str, Any]], tuple[Stage, ...] | Suite]


@dataclass(frozen=True)
class SuitePattern:
    """A family of suite names: `robustvit list suites` shows the form, `make` builds the stages."""

    form: str
    about: str
    pattern: re.Pattern[str]
    make: MakeStages


def _one(name: str, attack: Attack) -> tuple[Stage, ...]:
    return (Stage(name, attack),)


def _clean(name: str, match: re.Match[str], options: dict[str, Any]) -> tuple[Stage, ...]:
    _no_options(name, options)
    return ()


def _iterated(kind: Callable[..., Attack], **usual: Any) -> MakeStages:
    """Attacks with the number of steps, restarts and targets in their name."""

    def make(name: str, match: re.Match[str], options: dict[str, Any]) -> tuple[Stage, ...]:
        if "steps" in options:
            raise UserError(f"suite '{name}': the number of steps stands in its name")
        if "loss" in usual and "loss" in options:
            raise UserError(f"suite '{name}': the loss stands in its name")
        attack = kind(steps=int(match["steps"]), **{**usual, **options})
        if match["times"]:
            attack = Restarts(inner=attack, times=int(match["times"]))
        return towards(name, attack, int(match["targets"])) if match["targets"] else _one(name, attack)

    return make


def _towards_nine(kind: Callable[..., Attack], **usual: Any) -> MakeStages:
    def make(name: str, match: re.Match[str], options: dict[str, Any]) -> tuple[Stage, ...]:
        if set(usual) & set(options):
            raise UserError(
                f"suite '{name}': {' and '.join(usual)} can't be set in it; another attack has another name"
            )
        return towards(name, kind(**usual, **options))

    return make


def _transfer(name: str, match: re.Match[str], options: dict[str, Any]) -> Suite:
    if "surrogate" not in options or set(options) - {"surrogate", "attack"}:
        raise UserError(f"suite '{name}': transfer takes surrogate=CHECKPOINT and, if you like, attack=SUITE")
    inner = _by_name(options.get("attack", "pgd-20"))
    if inner.sampled or any(stage.target_order == "nearest" or _scales(stage) for stage in inner.stages):
        raise UserError(
            f"suite '{name}': '{inner.name}' looks at the judged model; transfer takes attacks such as pgd-20"
        )

    def from_surrogate(suite: Suite) -> Suite:
        stages = tuple(
            replace(stage, attack=FromSurrogate(surrogate=options["surrogate"], inner=stage.attack))
            for stage in suite.stages
        )
        return Suite(name, stages, in_l1=None if suite.in_l1 is None else from_surrogate(suite.in_l1))

    return from_surrogate(inner)


def _scales(stage: Stage) -> bool:
    return isinstance(stage.attack, AttentionScaling)


def _apgd(name: str, match: re.Match[str], options: dict[str, Any]) -> tuple[Stage, ...]:
    if "loss" in options:
        raise UserError(f"suite '{name}': the loss stands in its name")
    attack: Attack = APGD(**{"loss": match["loss"], **options})
    return _one(name, Restarts(inner=attack, times=int(match["times"])) if match["times"] else attack)


def _autoattack(name: str, match: re.Match[str], options: dict[str, Any]) -> Suite:
    _no_options(name, options)
    version = match["version"] or "standard"
    return Suite(name, AUTOATTACK[version], in_l1=Suite(name, AUTOATTACK_L1) if version == "standard" else None)


def _fast(name: str, match: re.Match[str], options: dict[str, Any]) -> Suite:
    precision = options.pop("precision", None)
    _no_options(name, options)
    return fast(name, precision)


def _aas(name: str, match: re.Match[str], options: dict[str, Any]) -> Suite:
    own = {key: options.pop(key) for key in tuple(options) if is_setting(key)}
    rest = ",".join(f"{key}={value}" for key, value in options.items())
    return with_scaled_attention(name, _by_name(f"{match['inner']}:{rest}" if rest else match["inner"]), own)


def _autoattack_and_aas(name: str, match: re.Match[str], options: dict[str, Any]) -> Suite:
    """AutoAttack, then attention scaling on what it left standing."""
    _no_options(name, options)
    further = tuple(stage for inner in ("apgd-ce", "gama-100") for stage in _by_name(f"aas-{inner}").stages)
    return Suite(name, (*AUTOATTACK["standard"], *further), in_l1=Suite(name, (*AUTOATTACK_L1, *further)))


def _no_options(name: str, options: dict[str, Any]) -> None:
    if options:
        raise UserError(f"suite '{name}' takes no settings: another set of attacks has another name")


def _named(kind: str) -> re.Pattern[str]:
    return re.compile(rf"{kind}-(?P<steps>[1-9]\d*)(?:x(?P<times>[1-9]\d*))?(?:-t(?P<targets>[1-9]\d*))?")


PATTERNS: list[SuitePattern] = [
    SuitePattern("clean", "no attack: accuracy alone", re.compile(r"clean"), _clean),
    SuitePattern(
        "fgsm",
        "one step to the border, from the image itself",
        re.compile(r"fgsm"),
        lambda name, match, options: _one(name, FGSM(**options)),
    ),
    SuitePattern(
        "pgd-N[xR][-tT]",
        "N steps of 1.5 eps/N on the cross-entropy from a uniform start, R restarts, towards each of T classes; "
        "e.g. pgd-40:loss=cw,step=2/255 or pgd-8:step=eps/8,start=none",
        _named("pgd"),
        _iterated(PGD),
    ),
    SuitePattern(
        "cw-N[xR]",
        "PGD on the margin (Carlini and Wagner's loss): N steps of eps/4 from a uniform start; cw-100 in AAS",
        _named("cw"),
        _iterated(PGD, loss="cw", step="eps/4"),
    ),
    SuitePattern(
        "dlr-N[xR]",
        "PGD on the DLR loss: N steps of eps/4 from a uniform start; dlr-100 in AAS",
        _named("dlr"),
        _iterated(PGD, loss="dlr", step="eps/4"),
    ),
    SuitePattern(
        "gama-N[xR][-tT]",
        "GAMA-PGD: margin of probabilities, guided for the first quarter; gama-100 is the authors'",
        _named("gama"),
        _iterated(GAMA),
    ),
    SuitePattern(
        "mim-N[xR][-tT]",
        "momentum iterative method: N steps of eps/N from the image itself",
        _named("mim"),
        _iterated(MIM),
    ),
    SuitePattern(
        "carlini-wagner",
        "Carlini and Wagner's L2 attack with binary search, 9 rounds of 1,000 steps: slow, L2 only",
        re.compile(r"carlini-wagner"),
        lambda name, match, options: _one(name, CarliniWagner(**options)),
    ),
    SuitePattern(
        "apgd-LOSS[-xR]",
        "APGD on ce, cw, pm or dlr, 100 steps: once, as apgd-ce inside AutoAttack, or R restarts",
        re.compile(r"apgd-(?P<loss>ce|cw|pm|dlr)(?:-x(?P<times>[1-9]\d*))?"),
        _apgd,
    ),
    SuitePattern(
        "apgd-t",
        "APGD on the targeted DLR loss towards 9 classes, as inside AutoAttack",
        re.compile(r"apgd-t"),
        _towards_nine(APGD, loss="dlr"),
    ),
    SuitePattern(
        "fab-t",
        "FAB towards 9 classes, as inside AutoAttack",
        re.compile(r"fab-t"),
        _towards_nine(FAB),
    ),
    SuitePattern(
        "transfer",
        "images crafted on another model: transfer:surrogate=runs/other/checkpoints/last.safetensors,attack=pgd-20",
        re.compile(r"transfer"),
        _transfer,
    ),
    SuitePattern(
        "fast",
        f"not AutoAttack: APGD on the probability margin, then towards {FAST_TARGETS} classes in MALT's order, on all; "
        "AutoAttack on a sample of the survivors bounds what it could still take off: fast:precision=0.01",
        re.compile(r"fast"),
        _fast,
    ),
    SuitePattern(
        "autoattack+aas",
        "AutoAttack, then aas-apgd-ce and aas-gama-100 on the survivors: not called AutoAttack any more",
        re.compile(r"autoattack\+aas"),
        _autoattack_and_aas,
    ),
    SuitePattern(
        "aas-SUITE",
        "adaptive attention scaling around fgsm, pgd-N, cw-N, dlr-N, gama-N, apgd-ce ...: crafted with scaled "
        "attention, judged on the model as it is, with random factors beside it; aas-pgd-100:factors=0.01 or "
        "=random or =factors.json, blocks=6, criterion=ce, protocol=paper (judged on the scaled model)",
        re.compile(r"aas-(?P<inner>.+)"),
        _aas,
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
        suite = _by_name(item)
        if suite.sampled:
            raise UserError(f"suite '{item}' bounds what its own stages leave standing, and goes with no other")
        if suite.protocol != "transfer":
            raise UserError(f"suite '{item}' is judged on the scaled model, and goes with no other")
        return suite.stages
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
        return stages if isinstance(stages, Suite) else Suite(text, stages)
    raise UserError(f"no suite '{text}'{nearest(head, [family.form for family in PATTERNS])}")


def _options(text: str, tail: str) -> dict[str, Any]:
    pairs = [pair.partition("=") for pair in tail.split(",")] if ":" in text else []
    if not all(key and equals and value for key, equals, value in pairs):
        raise UserError(f"suite '{text}': settings after the colon are key=value pairs, such as loss=cw,step=2/255")
    keys = [key for key, _, _ in pairs]
    twice = next((key for key in keys if keys.count(key) > 1), None)
    if twice is not None:
        raise UserError(f"suite '{text}': {twice} is given twice")
    return {key: value for key, _, value in pairs}

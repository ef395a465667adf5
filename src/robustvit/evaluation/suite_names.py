"""Short forms of suites: `clean`, `pgd-20`, `pgd-50x5-t9`, `autoattack`, with settings after a colon."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import yaml
from pydantic import ValidationError

from robustvit.attacks import APGD, FAB, FGSM, GAMA, MIM, PGD, Attack, CarliniWagner, Restarts, Square
from robustvit.core.component import build, explain, registered
from robustvit.core.errors import UserError, nearest
from robustvit.evaluation.suite import FAST_TARGETS, Attacks, Fast, Single, Suite, Transfer, suite_from

Options = dict[str, Any]
MakeSuite = Callable[[str, re.Match[str], Options], Suite]


@dataclass(frozen=True)
class ShortForm:
    """A family of names: `robustvit list suites` shows the form, `make` builds the suite."""

    form: str
    about: str
    pattern: re.Pattern[str]
    make: MakeSuite
    attack: str = ""
    """The registered attack that must be named so, its number of steps included."""


SHORT_FORMS: list[ShortForm] = []


def short_form(form: str, about: str, pattern: str, attack: str = "") -> Callable[[MakeSuite], MakeSuite]:
    """Register a family of names; the function gets the whole text, the match and the settings after the colon."""

    def register(make: MakeSuite) -> MakeSuite:
        SHORT_FORMS.append(ShortForm(form, about, re.compile(pattern), make, attack))
        return make

    return register


def suite_by_name(text: str) -> Suite:
    """A short form, a registered suite or attack with `:key=value,...`, or settings as YAML in braces or brackets."""
    if text.lstrip().startswith(("{", "[")):
        return _from_yaml(text)
    head, _, tail = text.partition(":")
    try:
        for family in SHORT_FORMS:
            if match := family.pattern.fullmatch(head):
                return family.make(text, match, _options(text, tail))
        for kind in ("suite", "attack"):
            if head in registered(kind) and head not in {family.attack for family in SHORT_FORMS}:
                built = build(kind, {"name": head, **_options(text, tail)})
                return suite_from(built) if kind == "suite" else Single(attack=built, title=text)
    except ValidationError as error:
        raise UserError(f"suite '{text}': {explain(error, 'attack')}") from None
    raise UserError(f"no suite '{text}'{nearest(head, [family.form for family in SHORT_FORMS])}")


def _from_yaml(text: str) -> Suite:
    try:
        value = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        raise UserError(f"suite '{text}': not YAML; such as '{{name: restarts, inner: fab, times: 3}}'") from None
    return suite_from(value)


def _options(text: str, tail: str) -> Options:
    pairs = [pair.partition("=") for pair in tail.split(",")] if ":" in text else []
    if not all(key and equals and value for key, equals, value in pairs):
        raise UserError(f"suite '{text}': settings after the colon are key=value pairs, such as loss=cw,step=2/255")
    keys = [key for key, _, _ in pairs]
    twice = next((key for key in keys if keys.count(key) > 1), None)
    if twice is not None:
        raise UserError(f"suite '{text}': {twice} is given twice")
    return {key: value for key, _, value in pairs}


def no_options(text: str, options: Mapping[str, Any]) -> None:
    if options:
        raise UserError(f"suite '{text}' takes no settings: another set of attacks has another name")


def _fixed(text: str, options: Mapping[str, Any], *names: str) -> None:
    """Settings that the suite's name holds."""
    for name in names:
        if name in options:
            what = "number of steps" if name == "steps" else name
            raise UserError(f"suite '{text}': the {what} is part of its name")


def _iterated(form: str, about: str, kind: Callable[..., Attack], **usual: Any) -> None:
    """Attacks with the number of steps, restarts and targets in their name."""
    name = form.partition("-")[0]

    pattern = rf"{name}-(?P<steps>[1-9]\d*)(?:x(?P<times>[1-9]\d*))?(?:-t(?P<targets>[1-9]\d*))?"

    @short_form(form, about, pattern, attack=name)
    def make(text: str, match: re.Match[str], options: Options) -> Suite:
        _fixed(text, options, "steps", *(["loss"] if "loss" in usual else []))
        attack = kind(steps=int(match["steps"]), **{**usual, **options})
        if match["times"]:
            attack = Restarts(inner=attack, times=int(match["times"]))
        return Single(attack=attack, targets=int(match["targets"]) if match["targets"] else None, title=text)


def _single(name: str, about: str, kind: Callable[..., Attack]) -> None:
    short_form(name, about, name)(lambda text, match, options: Single(attack=kind(**options), title=text))


@short_form("clean", "no attack: accuracy alone", "clean")
def _clean(text: str, match: re.Match[str], options: Options) -> Suite:
    no_options(text, options)
    return Attacks(title=text)


_ITERATED: dict[str, tuple[str, Callable[..., Attack], Options]] = {
    "pgd-N[xR][-tT]": (
        "N steps of 1.5 eps/N on the cross-entropy from a uniform start, R restarts, towards each of T classes; "
        "e.g. pgd-40:loss=cw,step=2/255 or pgd-8:step=eps/8,start=none", PGD, {},
    ),
    "cw-N[xR]": (
        "PGD on the margin (Carlini and Wagner's loss): N steps of eps/4 from a uniform start",
        PGD, {"loss": "cw", "step": "eps/4"},
    ),
    "dlr-N[xR]": (
        "PGD on the DLR loss: N steps of eps/4 from a uniform start", PGD, {"loss": "dlr", "step": "eps/4"},
    ),
    "gama-N[xR][-tT]": (
        "GAMA-PGD: margin of probabilities, guided for the first quarter; gama-100 is the authors'", GAMA, {},
    ),
    "mim-N[xR][-tT]": ("momentum iterative method: N steps of eps/N from the image itself", MIM, {}),
}  # fmt: skip
for _form, (_about, _kind, _usual) in _ITERATED.items():
    _iterated(_form, _about, _kind, **_usual)
_single("fgsm", "one step to the border, from the image itself", FGSM)
_single("square", "Square alone, 5,000 queries: for models without gradients", Square)
_single("carlini-wagner", "Carlini and Wagner's L2 attack with binary search, 9 x 1,000 steps: slow", CarliniWagner)


@short_form(
    "apgd-LOSS[-xR]",
    "APGD on ce, cw, pm or dlr, 100 steps: once, as apgd-ce inside AutoAttack, or R restarts",
    r"apgd-(?P<loss>ce|cw|pm|dlr)(?:-x(?P<times>[1-9]\d*))?",
)
def _apgd(text: str, match: re.Match[str], options: Options) -> Suite:
    _fixed(text, options, "loss")
    attack: Attack = APGD(**{"loss": match["loss"], **options})
    return Single(attack=Restarts(inner=attack, times=int(match["times"])) if match["times"] else attack, title=text)


@short_form("apgd-t", "APGD on the targeted DLR loss towards 9 classes, as inside AutoAttack", "apgd-t")
def _apgd_targeted(text: str, match: re.Match[str], options: Options) -> Suite:
    _fixed(text, options, "loss")
    return Single(attack=APGD(**{"loss": "dlr", **options}), targets=9, title=text)


@short_form("fab-t", "FAB towards 9 classes, as inside AutoAttack", "fab-t")
def _fab_targeted(text: str, match: re.Match[str], options: Options) -> Suite:
    return Single(attack=FAB(**options), targets=9, title=text)


@short_form(
    "transfer",
    "images crafted on another model: transfer:surrogate=runs/other/checkpoints/last.safetensors,attack=pgd-20",
    "transfer",
)
def _transfer(text: str, match: re.Match[str], options: Options) -> Suite:
    if "surrogate" not in options or set(options) - {"surrogate", "attack"}:
        raise UserError(f"suite '{text}': transfer takes surrogate=MODEL and, if you like, attack=SUITE")
    return Transfer(**options, title=text)


@short_form(
    "fast",
    f"not AutoAttack: APGD on the probability margin, then towards {FAST_TARGETS} classes in MALT's order, on all; "
    "AutoAttack on a sample of the survivors bounds what it could still take off: fast:precision=0.01",
    "fast",
)
def _fast(text: str, match: re.Match[str], options: Options) -> Suite:
    return Fast(**options, title=text)


@short_form(
    "autoattack",
    "AutoAttack, standard: APGD-CE, APGD-T and FAB-T towards 9 classes each, Square; "
    "also autoattack-plus, and autoattack-rand for models that are random",
    r"autoattack(?:-(?P<version>plus|rand))?",
)
def _autoattack(text: str, match: re.Match[str], options: Options) -> Suite:
    no_options(text, options)
    return build("suite", {"name": "autoattack", "version": match["version"] or "standard", "title": text})  # type: ignore[no-any-return]

"""Short forms of suites: `clean`, `pgd-20`, `pgd-50x5-t9`, `autoattack`, with settings after a colon."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from robustvit.attacks import APGD, FAB, FGSM, GAMA, MIM, PGD, Attack, CarliniWagner, Restarts, Square
from robustvit.core.component import build, explaining, registered
from robustvit.core.errors import UserError, nearest, shortened
from robustvit.core.readers import parse_yaml
from robustvit.evaluation.suite import FAST_TARGETS, Attacks, AutoAttack, Fast, Single, Suite, Transfer, suite_from

Options = dict[str, Any]
MakeSuite = Callable[[str, re.Match[str], Options], Suite]


@dataclass(frozen=True)
class ShortForm:
    """A family of names: `robustvit list suites` shows the form, `make` builds the suite from text, match, settings."""

    form: str
    about: str
    pattern: str
    make: MakeSuite
    fixed: tuple[str, ...] | None = ()
    """Settings that are part of the name and can't be given; None: no settings at all."""
    attack: str = ""
    """The registered attack that must be named so, with its number of steps."""

    def suite(self, text: str, match: re.Match[str], options: Options) -> Suite:
        if options and self.fixed is None:
            raise UserError(f"suite '{text}' takes no settings: another set of attacks has another name")
        given = next((name for name in self.fixed or () if name in options), None)
        if given is not None:
            what = "number of steps" if given == "steps" else given
            raise UserError(f"suite '{text}': the {what} is part of its name")
        return self.make(text, match, options)


def suite_by_name(text: str) -> Suite:
    """A short form, a registered suite or attack with `:key=value,...`, or settings as YAML in braces or brackets."""
    value = yaml_value(text)
    if not isinstance(value, str):
        return suite_from(value)
    known = [*registered("suite"), *registered("evaluator")]  # also those of plugins, which may add short forms
    head = text.partition(":")[0]
    with explaining(f"suite '{text}': attack"):
        for family in SHORT_FORMS:
            if match := re.fullmatch(family.pattern, head):
                return family.suite(text, match, settings_after_colon(text))
        for kind in ("suite", "attack"):
            if head in registered(kind) and head not in {family.attack for family in SHORT_FORMS}:
                built = build(kind, {"name": head, **settings_after_colon(text)})
                return cast(Suite, built) if kind == "suite" else Single(attack=built, title=text)
    if head in registered("evaluator"):
        raise UserError(f"'{shortened(text)}' is an evaluator, not an attack; name a suite of attacks, such as pgd-20")
    name = head.partition("-")[0]
    form = next((family.form for family in SHORT_FORMS if family.attack == name), None) if name else None
    if form is not None:
        raise UserError(f"no suite '{shortened(text)}': how many steps? the name is {form}, such as {name}-20")
    raise UserError(f"no suite '{shortened(text)}'{nearest(head, [*(family.form for family in SHORT_FORMS), *known])}")


def yaml_value(text: str, where: str = "") -> Any:
    """What a text in braces or brackets means; any other text is itself."""
    is_yaml = text.lstrip().startswith(("{", "["))
    return parse_yaml(text, where or f"suite '{shortened(text)}'") if is_yaml else text


def settings_after_colon(text: str) -> Options:
    """`key=value` pairs between commas; values in brackets or braces are YAML.

    A value with settings of its own, such as `attack=pgd-8:step=eps/8,start=none`, takes all that follow.
    """
    parts = _split(text) if ":" in text else []
    pairs: list[tuple[str, str]] = []
    for number, part in enumerate(parts):
        key, equals, value = part.partition("=")
        if not (key.strip() and equals and value.strip()):
            raise UserError(f"suite '{text}': settings after the colon are key=value pairs, such as loss=cw,step=2/255")
        if _NESTED.match(value):
            pairs.append((key.strip(), ",".join([value, *parts[number + 1 :]])))
            break
        pairs.append((key.strip(), value))
    keys = [key for key, _ in pairs]
    twice = next((key for key in keys if keys.count(key) > 1), None)
    if twice is not None:
        raise UserError(f"suite '{text}': {twice} is given twice")
    return {key: yaml_value(value, f"suite '{shortened(text)}': {key}") for key, value in pairs}


_NESTED = re.compile(r"\s*[\w-]+:\s*\w+=")
"""A short form with settings: nothing else has `name:key=` at its beginning."""
_CLOSING = {"[": "]", "{": "}"}


def _split(text: str) -> list[str]:
    """What is after the colon, at the commas outside of values in brackets or braces and the quotes in them."""
    parts, closing, quote = [""], "", ""
    for letter in text.partition(":")[2]:
        if letter == "," and not closing:
            parts.append("")
            continue
        parts[-1] += letter
        if quote or (closing and letter in "'\""):
            quote = "" if letter == quote else quote or letter
        elif letter in _CLOSING and (closing or parts[-1][:-1].rstrip().endswith("=")):  # not in the middle of a path
            closing = _CLOSING[letter] + closing
        elif closing and letter == closing[0]:
            closing = closing[1:]
    if closing:
        raise UserError(f"suite '{shortened(text)}': a '{closing[0]}' is missing")
    return parts


def _iterated(form: str, about: str, kind: Callable[..., Attack], **usual: Any) -> ShortForm:
    """Attacks with the number of steps, restarts and targets in their name."""

    def make(text: str, match: re.Match[str], options: Options) -> Suite:
        attack = kind(steps=int(match["steps"]), **{**usual, **options})
        targets = int(match["targets"]) if match["targets"] else None
        return Single(attack=_restarted(attack, match), targets=targets, title=text)

    name = form.partition("-")[0]
    pattern = rf"{name}-(?P<steps>[1-9]\d{{0,8}})(?:x(?P<times>[1-9]\d{{0,8}}))?(?:-t(?P<targets>[1-9]\d{{0,8}}))?"
    return ShortForm(form, about, pattern, make, ("steps", *({"loss"} & set(usual))), name)


def _restarted(attack: Attack, match: re.Match[str]) -> Attack:
    return Restarts(inner=attack, times=int(match["times"])) if match["times"] else attack


def _plain(name: str, about: str, kind: Callable[..., Attack], targets: int | None = None, **usual: Any) -> ShortForm:
    """One attack, with settings but those in its name."""

    def make(text: str, match: re.Match[str], options: Options) -> Suite:
        return Single(attack=kind(**usual, **options), targets=targets, title=text)

    return ShortForm(name, about, name, make, tuple(usual))


def _transfer(text: str, match: re.Match[str], options: Options) -> Suite:
    if "surrogate" not in options or set(options) - {"surrogate", "attack"}:
        raise UserError(f"suite '{text}': transfer takes surrogate=MODEL and, if you like, attack=SUITE")
    return Transfer(**options, title=text)


SHORT_FORMS = [
    ShortForm("clean", "no attack: accuracy alone", "clean", lambda text, match, options: Attacks(title=text), None),
    _plain("fgsm", "one step to the border, from the image itself", FGSM),
    _iterated(
        "pgd-N[xR][-tT]",
        "N steps of 1.5 eps/N on the cross-entropy from a uniform start, R restarts, towards each of T classes; "
        "e.g. pgd-40:loss=cw,step=2/255 or pgd-8:step=eps/8,start=none",
        PGD,
    ),
    _iterated(
        "cw-N[xR]",
        "PGD on the margin (Carlini and Wagner's loss): N steps of eps/4 from a uniform start",
        PGD, loss="cw", step="eps/4",
    ),
    _iterated(
        "dlr-N[xR]", "PGD on the DLR loss: N steps of eps/4 from a uniform start", PGD, loss="dlr", step="eps/4"
    ),
    _iterated(
        "gama-N[xR][-tT]",
        "GAMA-PGD: margin of probabilities, guided for the first quarter; gama-100 is the authors'",
        GAMA,
    ),
    _iterated("mim-N[xR][-tT]", "momentum iterative method: N steps of eps/N from the image itself", MIM),
    _plain("carlini-wagner", "Carlini and Wagner's L2 attack, 9 rounds of 1,000 steps: slow, L2 only", CarliniWagner),
    ShortForm(
        "apgd-LOSS[-xR]",
        "APGD on ce, cw, pm or dlr, 100 steps: once, as apgd-ce inside AutoAttack, or R restarts",
        r"apgd-(?P<loss>ce|cw|pm|dlr)(?:-x(?P<times>[1-9]\d{0,8}))?",
        lambda text, match, options: Single(
            attack=_restarted(APGD(loss=match["loss"], **options), match), title=text  # type: ignore[arg-type]
        ),
        ("loss",),
    ),
    _plain("apgd-t", "APGD on the targeted DLR loss towards 9 classes, as inside AutoAttack", APGD, 9, loss="dlr"),
    _plain("fab-t", "FAB towards 9 classes, as inside AutoAttack", FAB, 9),
    _plain("square", "Square alone, 5,000 queries: for models without gradients", Square),
    ShortForm(
        "transfer",
        "images crafted on another model: transfer:surrogate=runs/other/checkpoints/last.safetensors,attack=pgd-20",
        "transfer",
        _transfer,
    ),
    ShortForm(
        "fast",
        f"not AutoAttack: APGD on the probability margin, then towards {FAST_TARGETS} classes in MALT's order, on all; "
        "AutoAttack on a sample of the survivors bounds what it could still take off: fast:precision=0.01",
        "fast",
        lambda text, match, options: Fast(**options, title=text),
    ),
    ShortForm(
        "autoattack",
        "AutoAttack, standard: APGD-CE, APGD-T and FAB-T towards 9 classes each, Square; "
        "also autoattack-plus, and autoattack-rand for models that are random",
        r"autoattack(?:-(?P<version>plus|rand))?",
        lambda text, match, options: AutoAttack(match["version"] or "standard", text),  # type: ignore[arg-type]
        None,
    ),
]  # fmt: skip
"""Other modules append theirs."""

"""Suites whose attacks scale attention: `aas-pgd-100`, `autoattack+aas`."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from robustvit.attacks import AttentionScaling, FactorSearch, attacks_inside
from robustvit.attacks.factors_file import read_factors
from robustvit.core.component import component
from robustvit.core.errors import UserError
from robustvit.core.numbers import Count, parse_number
from robustvit.evaluation.plan import Plan, Stage
from robustvit.evaluation.suite import AnySuite, Attacks, AutoAttack, Suite
from robustvit.evaluation.suite_names import SHORT_FORMS, Options, ShortForm, suite_by_name
from robustvit.models.attention_factors import is_factor
from robustvit.threats import LpBall

_OWN = ("factors", "blocks", "where", "judged_on", "criterion")


@component("suite", "attention_scaled")
class AttentionScaled:
    """Adaptive attention scaling around every attack of another suite."""

    inner: AnySuite
    """The suite whose attacks are wrapped."""
    factors: float | tuple[float, ...] | Literal["random"] | None = None
    """One for all blocks, one for each, random ones, or None: searched for."""
    searched_on: str | None = None
    """Fingerprint of the model that the factors were searched on."""
    search: FactorSearch = FactorSearch()
    """How factors are searched for."""
    blocks: Count | None = None
    """Only so many are scaled, from the first on."""
    where: Literal["attention", "logits"] = "attention"
    """Networks without attention can have their logits scaled."""
    judged_on: Literal["original", "scaled"] = "original"
    """Which model judges the images; `scaled` is the paper's protocol."""
    title: str | None = None
    """Of the result; null: made from the attacks."""

    def plan(self, threat: LpBall) -> Plan:
        inner = self.inner.plan(threat)
        name = self.title or f"aas-{inner.name}"
        scaled = any(isinstance(part, AttentionScaling) for one in inner.stages for part in attacks_inside(one.attack))
        if inner.sampled or not inner.stages or scaled or isinstance(self.inner, AutoAttack):
            raise UserError(f"suite '{name}': attention can be scaled around attacks such as pgd-100 or gama-100")
        if self.judged_on == "scaled" and len(inner.stages) > 1:
            raise UserError(f"suite '{name}': judged_on=scaled takes one attack, without targets")
        single = len(inner.stages) == 1
        stages = tuple(self._scaled(stage, name if single else f"aas-{stage.name}") for stage in inner.stages)
        return Plan(name, stages)

    def _scaled(self, stage: Stage, name: str) -> Stage:
        own = {key: getattr(self, key) for key in ("factors", "searched_on", "search", "blocks", "where", "judged_on")}
        if self.factors == "random":
            own |= {"factors": None, "search": replace(self.search, steps=0)}
        return replace(stage, name=name, attack=AttentionScaling(inner=stage.attack, **own))


def _attention_scaled(text: str, match: re.Match[str], options: Options) -> Suite:
    own = {key: options.pop(key) for key in tuple(options) if key in _OWN or key.startswith("search_")}
    rest = ",".join(f"{key}={value}" for key, value in options.items())
    inner = suite_by_name(f"{match['inner']}:{rest}" if rest else match["inner"])
    return AttentionScaled(inner=inner, title=text, **_settings(text, own))


SHORT_FORMS += [
    ShortForm(
        "aas-SUITE",
        "adaptive attention scaling around fgsm, pgd-N, cw-N, dlr-N, gama-N, apgd-ce ...: crafted with scaled "
        "attention, judged on the original model, compared with random factors; aas-pgd-100:factors=0.01 or =random or "
        "=factors.json, blocks=6, criterion=ce, judged_on=scaled (as the paper judges)",
        r"aas-(?P<inner>.+)",
        _attention_scaled,
    ),
    ShortForm(
        "autoattack+aas",
        "AutoAttack, then aas-apgd-ce and aas-gama-100 on the survivors: not called AutoAttack any more",
        r"autoattack\+aas",
        lambda text, match, options: Attacks(members=("autoattack", "aas-apgd-ce", "aas-gama-100"), title=text),  # type: ignore[arg-type]
        None,
    ),
]


def _settings(text: str, own: Options) -> dict[str, Any]:
    """What is written after the colon, as the suite's settings."""
    of_search = {key.removeprefix("search_"): own[key] for key in own if key not in _OWN or key == "criterion"}
    plain = {key: own[key] for key in own if key in _OWN and key not in ("criterion", "factors")}
    search, factors = FactorSearch(**of_search), own.get("factors")
    if factors == "random" and "search_steps" in own:
        raise UserError(f"suite '{text}': with factors=random there are no search_steps; leave out one")
    if factors not in (None, "random"):
        if of_search:
            raise UserError(f"suite '{text}': with factors={factors} nothing is searched for; leave out one")
        if str(factors).endswith(".json"):
            factors, plain["searched_on"] = read_factors(Path(str(factors)))
        else:
            factors = _factor(str(factors))
    return {**plain, "search": search, "factors": factors}


def _factor(value: str) -> float:
    try:
        factor = float(parse_number(value))
    except (TypeError, ValueError):
        factor = 0.0
    if not is_factor(factor):
        raise UserError(f"factors={value}: one factor above 0 for all blocks (0.01), 'random', or a factors.json")
    return factor

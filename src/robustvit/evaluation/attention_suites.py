"""Suites whose attacks scale attention."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from robustvit.attacks import AttentionScaling, FactorSearch
from robustvit.attacks.factors_file import read_factors
from robustvit.core.errors import UserError
from robustvit.core.numbers import parse_number
from robustvit.evaluation.stages import Stage, Suite
from robustvit.models.attention_factors import is_factor


def is_setting(key: str) -> bool:
    """Whether it is attention scaling's: `search_steps` and the like are those of its search."""
    return key in ("factors", "blocks", "where", "protocol", "criterion") or key.startswith("search_")


def with_scaled_attention(name: str, inner: Suite, settings: dict[str, Any]) -> Suite:
    if inner.sampled or not inner.stages or inner.name.startswith(("aas-", "autoattack", "transfer")):
        raise UserError(f"suite '{name}': attention can be scaled around attacks such as pgd-100 or gama-100")
    own = dict(settings)
    protocol = own.pop("protocol", "transfer")
    if protocol not in ("transfer", "paper"):
        raise UserError(f"suite '{name}': protocol is transfer or paper, not '{protocol}'")
    if protocol == "paper" and (len(inner.stages) > 1 or own.get("where") == "logits"):
        raise UserError(f"suite '{name}': the paper's protocol takes one attack, without targets, and scales attention")
    return Suite(name, tuple(_scaled(stage, own) for stage in inner.stages), protocol=protocol)


def _scaled(stage: Stage, own: dict[str, Any]) -> Stage:
    of_search = (key for key in own if key == "criterion" or key.startswith("search_"))
    search = FactorSearch(**{key.removeprefix("search_"): own[key] for key in of_search})
    settings: dict[str, Any] = {key: own[key] for key in ("blocks", "where") if key in own}
    factors: Any = own.get("factors")
    if factors == "random":
        if "search_steps" in own:
            raise UserError(f"suite 'aas-{stage.name}': with factors=random there are no search_steps; leave out one")
        search, factors = replace(search, steps=0), None
    elif factors is not None:
        if search != FactorSearch():
            raise UserError(f"suite 'aas-{stage.name}': with factors={factors} nothing is searched for; leave out one")
        if factors.endswith(".json"):
            factors, settings["found_on"] = read_factors(Path(factors))
        else:
            factors = _factor(factors)
    attack = AttentionScaling(inner=stage.attack, factors=factors, search=search, **settings)
    told = ",".join(f"{key}={value}" for key, value in own.items())
    name = f"aas-{stage.name}{',' if ':' in stage.name else ':'}{told}" if told else f"aas-{stage.name}"
    return replace(stage, name=name, attack=attack)


def _factor(value: str) -> float:
    try:
        factor = float(parse_number(value))
    except (TypeError, ValueError):
        factor = 0.0
    if not is_factor(factor):
        raise UserError(
            f"factors={value}: one factor above 0 for all blocks, such as 0.01, 'random', or a factors.json"
        )
    return factor

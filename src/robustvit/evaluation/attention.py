"""Attention factors of an evaluation: searched for once on a sample of its images, kept, and used by all processes."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from robustvit.attacks import Attack, AttentionScaling, mapped
from robustvit.attacks.factor_search import module_of
from robustvit.attacks.factors_file import FILE, check_model, kept_searches, search_factors
from robustvit.core.component import to_dict
from robustvit.core.files import write_json
from robustvit.evaluation.stages import Stage, Suite
from robustvit.evaluation.subject import Subject
from robustvit.models.attention_probe import Scaling, probing


def scales_attention(suite: Suite) -> bool:
    return bool(_wrapped(suite))


def with_factors(suite: Suite, subject: Subject, folder: Path | None, quiet: bool) -> tuple[Suite, dict[str, Any]]:
    """The suite with every search carried out and its control beside it, and what the result says of the searches.

    What the folder holds isn't redone.
    """
    if suite.protocol == "transfer":
        suite = replace(suite, beside=_by_chance(suite.stages))
    kept = kept_searches(subject, folder)
    for search in dict.fromkeys(attack.search for attack in _wrapped(suite) if _is_open(attack)):
        if not any(entry["search"] == to_dict(search) for entry in kept):
            kept.append(search_factors(search, replace(subject, quiet=quiet)))
            if folder is not None:
                write_json(folder / FILE, kept)
    found = {str(entry["search"]): tuple(entry["factors"]) for entry in kept}

    def fill(attack: Attack) -> Attack:
        if isinstance(attack, AttentionScaling) and _is_open(attack):
            return replace(attack, factors=found[str(to_dict(attack.search))])
        return attack

    stages, beside = (
        tuple(replace(stage, attack=mapped(stage.attack, fill)) for stage in lane)
        for lane in (suite.stages, suite.beside)
    )
    return replace(suite, stages=stages, beside=beside), {"protocol": suite.protocol, "searches": kept}


@contextmanager
def judged(suite: Suite, subject: Subject, facts: dict[str, Any]) -> Iterator[Suite]:
    """Under the paper's protocol, within, the model is the scaled one, for the attack and for the judge alike."""
    if suite.protocol == "transfer":
        yield suite
        return
    (stage,) = suite.stages
    assert isinstance(stage.attack, AttentionScaling)
    assert stage.attack.factors is not None
    module = module_of(subject)
    factors = stage.attack.for_blocks(module, stage.attack.factors).to(subject.device)
    facts["original_clean_accuracy"] = _clean_accuracy(subject)
    facts["judged_with"] = factors.tolist()
    with probing(module, Scaling(factors)):
        yield replace(suite, stages=(replace(stage, attack=stage.attack.inner),))


def control_of(suite: Suite) -> Suite | None:
    """What stands beside a suite under the paper's protocol: the same with random factors."""
    stages = () if suite.protocol == "transfer" else _by_chance(suite.stages)
    return replace(suite, name=f"{suite.name},factors=random", stages=stages) if stages else None


def _by_chance(stages: tuple[Stage, ...]) -> tuple[Stage, ...]:
    """With random factors in place of those that were, or will be, searched for; nothing where none are."""

    def draw(attack: Attack) -> Attack:
        if not isinstance(attack, AttentionScaling) or attack.where != "attention" or isinstance(attack.factors, float):
            return attack
        return replace(attack, factors=None, found_on=None, search=replace(attack.search, steps=0))

    drawn = [replace(stage, attack=mapped(stage.attack, draw)) for stage in stages]
    named = (
        mine if mine == stage else replace(mine, name=f"{stage.name}: random factors")
        for stage, mine in zip(stages, drawn, strict=True)
    )
    return () if tuple(drawn) == stages else tuple(named)


def _wrapped(suite: Suite) -> list[AttentionScaling]:
    found: list[AttentionScaling] = []

    def note(attack: Attack) -> Attack:
        if isinstance(attack, AttentionScaling):
            found.append(attack)
        return attack

    for stage in (*suite.stages, *suite.beside):
        mapped(stage.attack, note)
    return found


def _is_open(attack: AttentionScaling) -> bool:
    return attack.where == "attention" and attack.factors is None


def check_scaling(suite: Suite, subject: Subject) -> None:
    """What can't be scaled so, told before anything else is done."""
    for attack in _wrapped(suite):
        if attack.where == "attention":
            module = module_of(subject)
            check_model(subject, attack.found_on)
            with probing(module, Scaling(attack.for_blocks(module, attack.factors or 1.0).to(subject.device))):
                pass


def _clean_accuracy(subject: Subject) -> float:
    right = 0
    for part in subject.indices.split(subject.batch_size):
        x, y = subject.batch(part)
        with torch.no_grad():
            right += int((subject.logits(x).argmax(1) == y).sum())
    return right / len(subject.indices)

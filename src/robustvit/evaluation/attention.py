"""Attention factors of an evaluation: searched for once on a sample of its images, kept, and used by all processes."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import BeforeValidator
from torch import Tensor

from robustvit.attacks import Attack, AttentionScaling, FactorSearch, mapped
from robustvit.attacks.attention_scaling import module_of
from robustvit.core.component import parse_number, to_dict
from robustvit.core.errors import UserError
from robustvit.core.files import is_file, read_json, write_json
from robustvit.core.progress import Progress
from robustvit.core.streams import seeded_subset
from robustvit.evaluation.stages import Stage, Suite
from robustvit.evaluation.subject import Subject
from robustvit.models.attention_factors import is_factor
from robustvit.models.attention_probe import Scaling, attention_blocks, probing

FILE = "factors.json"


def scales_attention(suite: Suite) -> bool:
    return bool(_wrapped(suite))


def with_factors(suite: Suite, subject: Subject, folder: Path | None, quiet: bool) -> tuple[Suite, dict[str, Any]]:
    """The suite with every search carried out and its control beside it, and what the result says of the searches.

    What the folder holds isn't redone.
    """
    if suite.protocol == "transfer":
        suite = replace(suite, beside=_by_chance(suite.stages))
    kept = _kept(folder, subject)
    for search in dict.fromkeys(attack.search for attack in _wrapped(suite) if _is_open(attack)):
        if not any(entry["search"] == to_dict(search) for entry in kept):
            kept.append(_searched(search, subject, quiet))
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


def _kept(folder: Path | None, subject: Subject) -> list[dict[str, Any]]:
    """What an evaluation killed before has searched for."""
    if folder is None or not is_file(folder / FILE):
        return []
    kept = read_json(folder / FILE)
    if not isinstance(kept, list) or not all(
        isinstance(entry, dict)
        and isinstance(entry.get("search"), dict)
        and _are_factors(entry.get("factors"))
        and entry.get("model") == subject.fingerprint()
        for entry in kept
    ):
        raise UserError(
            f"{folder / FILE}: not the factors of a search on this model; remove it to have them searched for anew"
        )
    return kept


def _are_factors(values: Any) -> bool:
    return isinstance(values, list) and bool(values) and all(map(is_factor, values))


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


def _searched(search: FactorSearch, subject: Subject, quiet: bool) -> dict[str, Any]:
    begin, passes = time.perf_counter(), subject.passes
    count = min(search.batches * search.batch_size, len(subject.indices))
    size = -(-count // search.batches)  # fewer images make smaller batches: each is a new random start
    chosen = subject.indices[seeded_subset(len(subject.indices), count, subject.seed, "attention factors")]

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        title = "attention factors" if search.steps else "random attention factors"
        with Progress(title, count, quiet=quiet) as progress:
            for part in chosen.split(size):
                yield subject.batch(part)
                progress.advance(len(part))

    factors = search(subject, module_of(subject), batches(), subject.seed)
    return {
        "search": to_dict(search),
        "model": subject.fingerprint(),
        "factors": list(factors),
        "images": count,
        "passes": subject.passes - passes,
        "seconds": round(time.perf_counter() - begin, 3),
    }


def _clean_accuracy(subject: Subject) -> float:
    right = 0
    for part in subject.indices.split(subject.batch_size):
        x, y = subject.batch(part)
        with torch.no_grad():
            right += int((subject.logits(x).argmax(1) == y).sum())
    return right / len(subject.indices)


def read_factors(path: Path) -> tuple[tuple[float, ...], str | None]:
    """From a file: a list of numbers, or what an evaluation searched for and the fingerprint of its model."""
    if not is_file(path):
        raise UserError(f"factors: no such file '{path}'; an evaluation with aas- suites keeps its own as {FILE}")
    found, model = read_json(path), None
    if isinstance(found, list) and found and all(isinstance(entry, dict) for entry in found):
        searched = [entry for entry in found if isinstance(entry.get("search"), dict) and entry["search"].get("steps")]
        entry = (searched or found)[0]
        found, model = entry.get("factors"), entry.get("model")
    if not _are_factors(found):
        raise UserError(f"{path}: holds no list of factors, which are numbers above 0")
    return tuple(float(value) for value in found), None if model is None else str(model)


def _given(value: Any) -> Any:
    try:
        number = parse_number(value)
    except (TypeError, ValueError):
        number = None
    if isinstance(value, str | Path) and number is None:
        return Path(value)
    if not is_factor(number):
        raise ValueError(f"one factor above 0 for all blocks, or the factors.json of an evaluation, not {value!r}")
    return number


GivenFactors = Annotated[float | Path, BeforeValidator(_given)]
"""One factor for all blocks, or the factors.json of an evaluation."""


def factors_for(subject: Subject, given: float | Path) -> tuple[Tensor, str]:
    """A factor for each block, checked to be this model's; and how to tell of them in a caption."""
    count = len(attention_blocks(module_of(subject)))
    if not isinstance(given, Path):
        return torch.full((count,), given), f", scaled: every block by {given:g}"
    values, model = read_factors(given)
    check_model(subject, model)
    return torch.tensor(values), f", scaled: by {', '.join(f'{value:.2g}' for value in values)} ({given})"


def check_model(subject: Subject, found_on: str | None) -> None:
    """Factors are of the model that they were searched on."""
    if found_on is not None and found_on != subject.fingerprint():
        raise UserError(
            "factors: they were found on another model; search anew, or give them as a plain list of numbers"
        )

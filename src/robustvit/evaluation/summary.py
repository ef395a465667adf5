"""From the ledger to the result."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from robustvit.core.component import to_dict
from robustvit.evaluation.carried import CARRIED, CARRIED_BESIDE, Carried, again, masking_sign
from robustvit.evaluation.ledger import Ledger, Outcome
from robustvit.evaluation.result import AttackResult, EvalResult, wilson_interval
from robustvit.evaluation.runner import CLEAN
from robustvit.evaluation.sampling import Sample, bound, choose_sample, fell_in_sample
from robustvit.evaluation.sanity import attention_signs, chance_sign, signs_after
from robustvit.evaluation.stages import Suite
from robustvit.evaluation.subject import Subject
from robustvit.models.create import describe


def standing_after(ledger: Ledger, names: Sequence[str], images: Sequence[int]) -> list[int] | None:
    """Which images these stages left standing, one after the other; None where the ledger has a gap."""
    standing = list(images)
    for name in names:
        outcomes: dict[int, Outcome | None] = {image: ledger.outcome(name, image) for image in standing}
        if None in outcomes.values():
            return None
        standing = [image for image in standing if outcomes[image] not in ("wrong", "fooled")]
    return standing


def sample_of(ledger: Ledger, suite: Suite, subject: Subject, carried: Carried) -> Sample | None:
    """The sample of what the stages left standing; None where the ledger has a gap."""
    right = standing_after(ledger, [CLEAN], subject.indices.tolist())
    if right is None or any(ledger.outcome(CARRIED, image) is None for image in carried.images):
        return None
    fresh = [image for image in right if ledger.outcome(CARRIED, image) is None]
    survivors = standing_after(ledger, [stage.name for stage in suite.stages], fresh)
    if survivors is None:
        return None
    return choose_sample(survivors, len(subject.indices), subject.seed, suite.precision)


def is_complete(ledger: Ledger, suite: Suite, subject: Subject, carried: Carried) -> bool:
    """Whether the ledger holds an outcome for every image and stage that the result speaks of."""
    sample = sample_of(ledger, suite, subject, carried)
    return (
        sample is not None
        and _standing_again(ledger, suite, carried) is not None
        and _standing_beside(ledger, suite, subject) is not None
        and standing_after(ledger, [stage.name for stage in suite.sampled], sample.images) is not None
    )


def _standing_again(ledger: Ledger, suite: Suite, carried: Carried) -> list[int] | None:
    """Of the images attacked a second time, those that withstand."""
    return standing_after(ledger, [again(stage) for stage in suite.stages], carried.again)


def _standing_beside(ledger: Ledger, suite: Suite, subject: Subject) -> list[int] | None:
    """What the suite's control leaves standing."""
    right = standing_after(ledger, [CLEAN], subject.indices.tolist()) or []
    fresh = [image for image in right if ledger.outcome(CARRIED_BESIDE, image) is None]
    return standing_after(ledger, [stage.name for stage in suite.beside], fresh)


def summarise(
    subject: Subject,
    suite: Suite,
    ledger: Ledger,
    carried: Carried,
    *,
    sha256: str,
    checkpoint: dict[str, Any] | None,
    folder: Path | None,
    made: dict[str, Any],
    attention: dict[str, Any] | None = None,
) -> EvalResult:
    images = subject.indices.tolist()
    correct = np.array([ledger.outcome(CLEAN, i) == "correct" for i in images])
    robust = correct.copy()
    warnings = [*subject.warnings]
    if attention is None or attention["protocol"] == "transfer":  # else it is the scaled model that can do nothing
        warnings += chance_sign(subject, int(correct.sum()))
    results = []
    curve = None
    if carried.smaller_eps:
        fell = np.array([ledger.outcome(CARRIED, i) == "fooled" for i in images])
        robust &= ~fell
        settings = {"name": "carried", "from": carried.source}
        results.append(AttackResult(CARRIED, int(fell.sum()), 0, float(robust.mean()), 0.0, 0, settings))
        survived = _standing_again(ledger, suite, carried) or []
        warnings.extend(masking_sign(len(survived), carried, subject.threat.eps))
        curve = {
            "carried_from": carried.source,
            "carried": int(fell.sum()),
            "attacked_again": len(carried.again),
            "withstood": len(survived),
        }
    sample = sample_of(ledger, suite, subject, carried)
    assert sample is not None, "summarised before it was complete"
    for stage in (*suite.stages, *suite.sampled):
        outcomes = [ledger.outcome(stage.name, i) for i in images]
        fell = robust & np.array([outcome == "fooled" for outcome in outcomes])
        unverified = sum(outcome == "unverified" for outcome in outcomes)
        if stage in suite.stages:
            robust &= ~fell
        results.append(
            AttackResult(
                stage.name,
                int(fell.sum()),
                unverified,
                float(robust.mean()),
                round(ledger.total(stage.name, "seconds"), 3),
                round(ledger.total(stage.name, "passes")),
                {**to_dict(stage.attack), **({"sampled": len(sample.images)} if stage in suite.sampled else {})},
            )
        )
        if unverified:
            warnings.append(
                f"{stage.name}: {unverified} images that the attack claimed did not stand the re-check "
                "and count as robust"
            )
    stood = None
    if suite.beside:
        stood = np.isin(images, _standing_beside(ledger, suite, subject) or [])
        attention = {**(attention or {}), "control": _control(ledger, suite, correct, stood)}
    warnings.extend(signs_after(suite, [result for result in results if result.name != CARRIED], len(images)))
    if attention is not None:
        warnings.extend(attention_signs(suite, results, attention, int(robust.sum()), len(images)))
    broken = ledger.total(CLEAN, "not finite")
    if broken:
        warnings.append(f"{broken:.0f} clean images gave logits that aren't finite and count as wrong")
    return EvalResult(
        suite=suite.name,
        threat=subject.threat,
        indices=subject.indices.numpy(),
        is_correct=correct,
        is_robust=robust,
        attacks=tuple(results),
        images_rule=subject.images_rule,
        data=subject.images.title,
        seed=subject.seed,
        precision=str(subject.dtype).removeprefix("torch."),
        device=subject.device,
        model=describe(subject.model),
        checkpoint={"path": None, "sha256": sha256, **(checkpoint or {}), "weights_sha256": sha256},
        warnings=tuple(warnings),
        **made,
        folder=str(folder) if folder else None,
        quantized=subject.quantized,
        curve=curve,
        bound=bound(sample, fell_in_sample(ledger, suite.sampled, sample), len(images)) if suite.sampled else None,
        smaller_eps=carried.smaller_eps,
        attention=attention,
        stood_beside=stood,
    )


def _control(ledger: Ledger, suite: Suite, correct: np.ndarray, stood: np.ndarray) -> dict[str, Any]:
    alone = [stage.name for stage in suite.beside if stage not in suite.stages]
    images = len(correct)
    return {
        "suite": " + ".join(alone),
        "clean_accuracy": float(correct.mean()),
        "robust_accuracy": float(stood.mean()),
        "interval": list(wilson_interval(int(stood.sum()), images)),
        "seconds": round(sum(ledger.total(name, "seconds") for name in alone), 3),
        "passes": round(sum(ledger.total(name, "passes") for name in alone)),
    }

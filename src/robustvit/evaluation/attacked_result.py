"""From the ledger of an attacked subject to its result."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from robustvit.attacks.hooks import attack_facts, attack_notes
from robustvit.core.component import to_dict
from robustvit.core.numbers import format_fraction
from robustvit.core.result import (
    CLEAN_ACCURACY,
    ORIGINAL_CLEAN_ACCURACY,
    ROBUST_ACCURACY,
    Outcomes,
    Provenance,
    Result,
    ResultWarning,
    StageResult,
    ThreatInfo,
    accuracy_measure,
    as_control,
)
from robustvit.evaluation.carried import CARRIED, Carried, again, masking_warning
from robustvit.evaluation.ledger import CLEAN, Ledger, Outcome
from robustvit.evaluation.plan import Plan, Stage
from robustvit.evaluation.sampling import Sample, bound, bound_note, choose_sample, fooled_in_sample
from robustvit.evaluation.sanity import chance_warning, stage_warnings, warning
from robustvit.evaluation.subject import Subject

if TYPE_CHECKING:
    from robustvit.evaluation.attacked import Attacked


def survivors_of(ledger: Ledger, stages: Sequence[str], images: Sequence[int]) -> list[int] | None:
    """Which images these stages left robust, one after the other; None where the ledger has a gap."""
    left = list(images)
    for name in stages:
        outcomes: dict[int, Outcome | None] = {image: ledger.outcome(name, image) for image in left}
        if None in outcomes.values():
            return None
        left = [image for image in left if outcomes[image] not in ("wrong", "fooled")]
    return left


def sample_of(ledger: Ledger, plan: Plan, subject: Subject, carried: Carried) -> Sample | None:
    """The sample of what the stages left robust; None where the ledger has a gap."""
    right = survivors_of(ledger, [CLEAN], subject.indices.tolist())
    if right is None or any(ledger.outcome(CARRIED, image) is None for image in carried.images):
        return None
    fresh = [image for image in right if ledger.outcome(CARRIED, image) is None]
    survivors = survivors_of(ledger, [stage.name for stage in plan.stages], fresh)
    if survivors is None:
        return None
    return choose_sample(survivors, len(subject.indices), subject.seed, plan.precision)


def attacked_result(
    subject: Subject,
    plan: Plan,
    evaluator: "Attacked",
    ledger: Ledger,
    provenance: Provenance,
    warnings: Sequence[ResultWarning],
    control: tuple[str, Result] | None,
) -> Result:
    images = subject.indices.tolist()
    correct = np.array([ledger.outcome(CLEAN, i) == "correct" for i in images])
    robust, carried, sample = correct.copy(), evaluator.carried, sample_of(ledger, plan, subject, evaluator.carried)
    if sample is None:
        raise RuntimeError("a result was asked for before the evaluation was complete")
    details: dict[str, Any] = {"attacks": facts} if (facts := _facts(plan)) else {}
    noticed = [*warnings, *ledger.warnings]
    original = next((fact[ORIGINAL_CLEAN_ACCURACY] for fact in facts if ORIGINAL_CLEAN_ACCURACY in fact), None)
    if original is None:
        noticed += chance_warning(subject, int(correct.sum()))
    if carried.smaller_eps:
        robust &= ~np.array([ledger.outcome(CARRIED, i) == "fooled" for i in images])
        survived = survivors_of(ledger, [again(stage) for stage in plan.stages], carried.again) or []
        noticed += masking_warning(len(survived), carried, evaluator.threat.eps)
        details["curve"] = _curve(carried, int((correct & ~robust).sum()), len(survived))
    stages = []
    for stage in plan.every:
        stages.append(_stage_result(ledger, stage, images, robust, sample if stage in plan.sampled else None))
        if count := stages[-1].num_unverified:
            observation = f"{stage.name}: {count} images that it claimed failed the re-check and count as robust"
            noticed.append(warning("unverified", observation))
    beaten = None if control is None else (control[0], int(control[1].is_robust.sum()))
    noticed += stage_warnings(plan, stages, int(robust.sum()), len(images), beaten)
    if broken := ledger.total(CLEAN, "not finite"):
        observation = f"{broken:.0f} clean images gave logits that aren't finite and count as wrong"
        noticed.append(warning("not-finite", observation))
    notes = [note for stage in plan.every for note in attack_notes(stage.attack)]
    if plan.sampled:
        details["bound"] = bound(sample, fooled_in_sample(ledger, plan.sampled, sample), len(images))
        notes.append(bound_note(details["bound"]))
    if control is not None:
        notes.append(_control_note(*control, with_clean=not np.array_equal(control[1].is_correct, correct)))
    hits = {ORIGINAL_CLEAN_ACCURACY: None if original is None else round(original * len(images)),
            CLEAN_ACCURACY: int(correct.sum()),
            ROBUST_ACCURACY: int(robust.sum()) if plan.stages else None}  # fmt: skip
    threat = evaluator.threat
    return Result(
        kind="attacked",
        title=plan.name,
        measures=tuple(accuracy_measure(name, n, len(images)) for name, n in hits.items() if n is not None),
        provenance=provenance,
        outcomes=Outcomes(np.array(images), np.array([ledger.predicted(i) for i in images]), correct, robust),
        threat=ThreatInfo(threat.norm, threat.eps, format_fraction(threat.eps)),
        stages=tuple(stages),
        warnings=tuple(dict.fromkeys(noticed)),
        notes=tuple(dict.fromkeys(notes)),
        judges_original=original is None,
        control=None if control is None else as_control(*control),
        details=details,
        control_result=None if control is None else control[1],
    )


def _stage_result(
    ledger: Ledger, stage: Stage, images: Sequence[int], robust: np.ndarray, sample: Sample | None
) -> StageResult:
    """What a stage did; `robust` loses what it fooled, unless it met a sample only."""
    outcomes = [ledger.outcome(stage.name, i) for i in images]
    fooled = robust & np.array([outcome == "fooled" for outcome in outcomes])
    met = int(robust.sum()) if sample is None else len(sample.images)
    if sample is None:
        robust &= ~fooled
    return StageResult(
        name=stage.name,
        num_images=met,
        num_fooled=int(fooled.sum()),
        num_unverified=sum(outcome == "unverified" for outcome in outcomes),
        robust_accuracy=float(robust.mean()),
        seconds=round(ledger.total(stage.name, "seconds"), 3),
        passes=round(ledger.total(stage.name, "passes")),
        settings=to_dict(stage.attack),
        is_sampled=sample is not None,
    )


def _curve(carried: Carried, fooled: int, survived: int) -> dict[str, Any]:
    return {
        "carried_from": carried.source,
        "carried": fooled,
        "attacked_again": len(carried.again),
        "withstood": survived,
        "smaller_eps": list(carried.smaller_eps),
    }


def _facts(plan: Plan) -> list[dict[str, Any]]:
    """What attacks say of what they searched for."""
    return [{"stage": stage.name, **facts} for stage in plan.every for facts in attack_facts(stage.attack)]


def _control_note(name: str, control: Result, with_clean: bool) -> str:
    low, high = control.interval
    clean = f", clean {100 * control.clean_accuracy:.1f} %" if with_clean else ""
    return f"with {name}: {100 * control.robust_accuracy:.1f} % ({100 * low:.1f} to {100 * high:.1f}){clean}"

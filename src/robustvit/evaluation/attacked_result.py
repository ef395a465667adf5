"""From the ledger of an attacked subject to its result."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from robustvit.attacks.hooks import attack_facts
from robustvit.core.component import to_dict
from robustvit.core.numbers import format_fraction
from robustvit.core.result import (
    CLEAN_ACCURACY,
    ORIGINAL_CLEAN_ACCURACY,
    ROBUST_ACCURACY,
    Outcomes,
    Provenance,
    Result,
    StageResult,
    ThreatInfo,
    accuracy_measure,
    as_control,
)
from robustvit.evaluation.carried import CARRIED, again, masking_warning
from robustvit.evaluation.ledger import CLEAN, Ledger
from robustvit.evaluation.plan import Stage
from robustvit.evaluation.sampling import Sample, bound, bound_note
from robustvit.evaluation.sanity import chance_warning, not_finite_warning, stage_warnings, warning

if TYPE_CHECKING:
    from robustvit.evaluation.attacked import AttackedEvaluation


def attacked_result(
    evaluation: "AttackedEvaluation", ledger: Ledger, provenance: Provenance, control: tuple[str, Result] | None
) -> Result:
    subject, plan, threat = evaluation.subject, evaluation.plan, evaluation.threat
    images, carried, sample = subject.indices.tolist(), evaluation.evaluator.carried, evaluation.sample(ledger)
    if sample is None:
        raise RuntimeError("a result was asked for before the evaluation was complete")
    correct = np.array([ledger.outcome(CLEAN, i) == "correct" for i in images])
    robust = correct.copy()
    facts = [{"stage": stage.name, **facts} for stage in plan.every for facts in attack_facts(stage.attack)]
    details: dict[str, Any] = {"attacks": facts} if facts else {}
    noticed = [*evaluation.warnings, *ledger.warnings]
    original = next((fact[ORIGINAL_CLEAN_ACCURACY] for fact in facts if ORIGINAL_CLEAN_ACCURACY in fact), None)
    if original is None:
        noticed += chance_warning(subject, int(correct.sum()))
    if carried.smaller_eps:
        robust &= ~np.array([ledger.outcome(CARRIED, i) == "fooled" for i in images])
        survived = len(ledger.survivors(map(again, plan.every), carried.again) or [])
        noticed += masking_warning(survived, carried, threat.eps)
        details["curve"] = carried.facts(int((correct & ~robust).sum()), survived)
    stages = []
    for stage in plan.every:
        stages.append(_stage_result(ledger, stage, images, robust, sample if stage in plan.sampled else None))
        if count := stages[-1].num_unverified:
            observation = f"{stage.name}: {count} images that it claimed failed the re-check and count as robust"
            noticed.append(warning("unverified", observation))
    beaten = None if control is None else (control[0], int(control[1].is_robust.sum()))
    noticed += stage_warnings(plan, stages, int(robust.sum()), len(images), beaten, sample)
    noticed += not_finite_warning({CLEAN: int(ledger.total(CLEAN, "not finite"))})
    notes = evaluation.notes()
    if plan.sampled:
        left = ledger.survivors([stage.name for stage in plan.sampled], sample.images) or []
        details["bound"] = bound(sample, len(sample.images) - len(left), len(images))
        notes.append(bound_note(details["bound"]))
    if control is not None:
        notes.append(_control_note(*control, with_clean=not np.array_equal(control[1].is_correct, correct)))
    hits = {ORIGINAL_CLEAN_ACCURACY: None if original is None else round(original * len(images)),
            CLEAN_ACCURACY: int(correct.sum()),
            ROBUST_ACCURACY: int(robust.sum()) if plan.stages else None}  # fmt: skip
    return Result(
        kind="attacked",
        title=plan.name,
        measures=tuple(accuracy_measure(name, n, len(images)) for name, n in hits.items() if n is not None),
        provenance=provenance,
        outcomes=Outcomes(np.array(images), np.array([ledger.predicted(i) for i in images]), correct, robust),
        threat=ThreatInfo(threat.norm, threat.eps, format_fraction(threat.eps)),
        stages=tuple(stages),
        warnings=tuple(dict.fromkeys(noticed)),
        notes=tuple(notes),
        judges_original=original is None,
        control=None if control is None else as_control(*control),
        details=details,
        control_result=None if control is None else control[1],
    )


def _stage_result(
    ledger: Ledger, stage: Stage, images: Sequence[int], robust: np.ndarray, sample: Sample | None
) -> StageResult:
    """What a stage did; `robust` loses what it fooled."""
    outcomes = [ledger.outcome(stage.name, i) for i in images]
    met = robust.copy() if sample is None else robust & np.isin(images, sample.images)
    fooled = met & np.array([outcome == "fooled" for outcome in outcomes])
    robust &= ~fooled
    return StageResult(
        name=stage.name,
        num_images=int(met.sum()),
        num_fooled=int(fooled.sum()),
        num_unverified=sum(outcome == "unverified" for outcome in outcomes),
        robust_accuracy=float(robust.mean()),
        seconds=round(ledger.total(stage.name, "seconds"), 3),
        passes=round(ledger.total(stage.name, "passes")),
        settings=to_dict(stage.attack),
        is_sampled=sample is not None,
    )


def _control_note(name: str, control: Result, with_clean: bool) -> str:
    low, high = control.interval
    clean = f", clean {100 * control.clean_accuracy:.1f} %" if with_clean else ""
    return f"with {name}: {100 * control.robust_accuracy:.1f} % ({100 * low:.1f} to {100 * high:.1f}){clean}"

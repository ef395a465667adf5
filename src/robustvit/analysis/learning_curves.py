"""The curves of a training, with the epochs at which it went wrong marked.

Robust overfitting (Rice et al. 2020), label leaking (Kurakin et al. 2017), catastrophic overfitting (Wong et al.
2020).
"""

import hashlib
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from robustvit.core.component import component
from robustvit.core.errors import UserError
from robustvit.core.figures import Chart, Line, Table, percent
from robustvit.core.finding import Finding
from robustvit.core.numbers import UnitInterval, mean_interval, wilson_interval
from robustvit.evaluation.store import Store
from robustvit.evaluation.subject import Subject

CLEAN, ROBUST, LOSS = "clean_accuracy", "robust_accuracy", "loss"
LEAD = "lead"
"""Of the robust over the clean accuracy, where a row has both: they are of the same training steps."""
COLLAPSE = 0.5
"""Of the best robust accuracy on held-out images; below, training failed rather than overfitted."""
TWO_SIDED = 1.959963984540054
LEAST_ROWS = 8
"""Of metrics.jsonl by which label leaking is tested; where an epoch has fewer, those of the next epochs count, too."""


@dataclass(frozen=True)
class Curve:
    """Values by epoch, in the order of training."""

    epochs: np.ndarray
    values: np.ndarray
    images: int = 0
    """That each value is a mean of; 0 where chance has no known part."""
    rows: tuple[tuple[float, ...], ...] = ()
    """By epoch, what each value is the mean of."""


@dataclass(frozen=True)
class Sign:
    """Something that went wrong, from an epoch on."""

    name: str
    epoch: float
    observation: str


@component("analysis", "learning_curves")
class LearningCurves:
    """Accuracy and loss by epoch, with the epoch of robust overfitting, label leaking or catastrophic overfitting."""

    clean_only: ClassVar[str] = "it shows the training, no images"

    drop: UnitInterval = 0.01
    """Least loss of robust accuracy, from the best epoch to the last, that counts; it must also exceed chance."""

    def check(self, subject: Subject) -> None:
        _rows(subject)

    def contents(self, subject: Subject) -> dict[str, Any]:
        return {"metrics": hashlib.sha256(json.dumps(_rows(subject), sort_keys=True).encode()).hexdigest()}

    def passes(self, subject: Subject) -> int:
        return 0

    def __call__(self, subject: Subject, store: Store) -> Finding:
        training, held_out = curves(_rows(subject))
        signs = find_signs(training, held_out, self.drop)
        marks = tuple((sign.epoch, sign.name) for sign in signs)
        accuracies = [
            _line(f"{name.removesuffix('_accuracy')}, {where}", known[name])
            for where, known in (("training", training), ("held out", held_out))
            for name in (CLEAN, ROBUST)
            if name in known
        ]
        charts = [Chart("Accuracy", "epoch", tuple(accuracies), True, marks=marks)] if accuracies else []
        if LOSS in training:
            charts.append(Chart("Loss", "epoch", (_line("training", training[LOSS]),), marks=marks))
        said = " ".join(f"{sign.name.capitalize()} from epoch {sign.epoch:g} on: {sign.observation}." for sign in signs)
        rows = [(sign.name, f"{sign.epoch:g}", sign.observation) for sign in signs]
        return Finding(
            "Learning curves",
            f"Training values are means over an epoch. {said or _nothing(held_out)}{_tested(training)}",
            tables=(Table("What went wrong", ("sign", "epoch", "observation"), tuple(rows) or (("none", "", ""),)),),
            charts=tuple(charts),
            arrays={f"{where}-{name}": np.stack([curve.epochs, curve.values])
                    for where, known in (("training", training), ("held-out", held_out))
                    for name, curve in known.items() if name != LEAD},
        )  # fmt: skip


def curves(rows: Sequence[dict[str, Any]]) -> tuple[dict[str, Curve], dict[str, Curve]]:
    """Of training, as means over each epoch, and of the images held out, by the name of the metric.

    The epochs of several phases follow each other.
    """
    training: dict[str, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    held_out: dict[str, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    before, phase, last, images = 0.0, None, 0.0, 0
    for row in rows:
        if row.get("kind") not in ("train", "validation") or not isinstance(row.get("epoch"), int | float):
            continue
        if row.get("phase") != phase:
            before, phase, last = before + last, row.get("phase"), 0.0
        last = max(last, float(np.ceil(row["epoch"])))
        is_training = row["kind"] == "train"
        images = images if is_training else int(row.get("images", 0))
        at = before + (float(np.ceil(row["epoch"])) if is_training else float(row["epoch"]))
        known = {name: float(row[name]) for name in (CLEAN, ROBUST, LOSS) if isinstance(row.get(name), int | float)}
        if {CLEAN, ROBUST} <= set(known):
            known[LEAD] = known[ROBUST] - known[CLEAN]
        for name, value in known.items():
            (training if is_training else held_out)[name][at].append(value)
    return _as_curves(training, 0), _as_curves(held_out, images)


def _as_curves(found: dict[str, dict[float, list[float]]], images: int) -> dict[str, Curve]:
    return {
        name: Curve(np.array(sorted(of)), np.array([np.mean(of[at]) for at in sorted(of)]), images,
                    tuple(tuple(of[at]) for at in sorted(of)))
        for name, of in found.items()
    }  # fmt: skip


def find_signs(training: dict[str, Curve], held_out: dict[str, Curve], drop: float) -> list[Sign]:
    found = [_leaking(training), *_falling(training, held_out.get(ROBUST), drop)]
    return [sign for sign in found if sign is not None]


def _leaking(training: dict[str, Curve]) -> Sign | None:
    """Adversarial images that are easier than clean ones give their labels away."""
    if LEAD not in training:
        return None
    lead = training[LEAD]
    for number, epoch in enumerate(lead.epochs):
        if lead.values[number] > 0 and _exceeds_chance(lead, number):
            clean, robust = (float(of.values[of.epochs == epoch][0]) for of in (training[CLEAN], training[ROBUST]))
            better = f"are classified better ({percent(robust)}) than clean ones ({percent(clean)})"
            return Sign("label leaking", float(epoch), f"adversarial training images {better}")
    return None


def _exceeds_chance(lead: Curve, first: int) -> bool:
    """By a paired t test over rows, from an epoch on; 95 % over all epochs together, as each of them is tested."""
    rows: list[float] = []
    for of_epoch in lead.rows[first:]:
        rows += of_epoch
        if len(rows) >= LEAST_ROWS:
            break
    interval = mean_interval(np.array(rows), -1.0, 1.0, confidence=1 - 0.05 / len(lead.epochs))
    return interval is not None and interval[0] > 0


def _falling(training: dict[str, Curve], robust: Curve | None, drop: float) -> list[Sign]:
    """From the best epoch to the last; a collapse is marked where it happens, overfitting at the best epoch."""
    if robust is None or len(robust.values) < 2:
        return []
    best = int(robust.values.argmax())
    top, end = float(robust.values[best]), float(robust.values[-1])
    collapsed = np.flatnonzero(robust.values[best:] < COLLAPSE * top)
    if len(collapsed):
        at = best + int(collapsed[0])
        fell = f"robust accuracy on held-out images falls from {percent(top)} to {percent(float(robust.values[at]))}"
        return [Sign("catastrophic overfitting", float(robust.epochs[at]), fell)]
    error = np.sqrt((top * (1 - top) + end * (1 - end)) / robust.images) if robust.images else 0.0
    if top - end < drop or top - end <= TWO_SIDED * error:
        return []
    still = _still_improves(training, float(robust.epochs[best]))
    if still is None:
        return []
    fell = f"robust accuracy on held-out images falls from {percent(top)} to {percent(end)} at the end"
    return [Sign("robust overfitting", float(robust.epochs[best]), f"{fell}, while {still}")]


def _still_improves(training: dict[str, Curve], since: float) -> str | None:
    """Whether training goes on to fit its own images: by robust accuracy where it is known, else by the loss."""
    for name, sign, words in ((ROBUST, 1, "that on training images rises"), (LOSS, -1, "the training loss falls")):
        if name in training:
            curve = training[name]
            then = curve.values[curve.epochs <= since]
            return words if len(then) and sign * (curve.values[-1] - then[-1]) > 0 else None
    return None


def _line(name: str, curve: Curve) -> Line:
    intervals = [wilson_interval(round(value * curve.images), curve.images) for value in curve.values if curve.images]
    return Line(name, tuple(curve.epochs.tolist()), tuple(curve.values.tolist()), tuple(intervals))


def _nothing(held_out: dict[str, Curve]) -> str:
    if ROBUST in held_out:
        return "No sign of robust overfitting, label leaking or catastrophic overfitting."
    return "Without robust accuracy on held-out images (validation), overfitting can't be seen."


def _tested(training: dict[str, Curve]) -> str:
    if LEAD not in training:
        return ""
    return (
        " Label leaking is marked where adversarial training images are classified better than clean ones by more than "
        "chance: a paired t test over the logged rows of an epoch, 95 % over all epochs together (Bonferroni)."
    )


def _rows(subject: Subject) -> list[dict[str, Any]]:
    if subject.run is None:
        raise UserError("learning_curves: a model alone has none; name it by its run folder")
    rows = subject.run.metrics.read()
    if not any(row.get("kind") == "train" for row in rows):
        raise UserError(f"{subject.run.metrics.path}: no rows of a training, whose curves could be shown")
    return rows

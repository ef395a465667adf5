"""From the ledger of a transfer matrix to its result: accuracies, drops, and what attacks count."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from robustvit.core.figures import Heatmap
from robustvit.core.measure import Kind
from robustvit.core.numbers import format_fraction, wilson_interval
from robustvit.core.result import (
    CLEAN_ACCURACY,
    ConditionResult,
    Measure,
    Outcomes,
    Provenance,
    Result,
    ResultWarning,
    ThreatInfo,
    mean_accuracy_measure,
)
from robustvit.evaluation.ledger import CLEAN, Answers, Ledger
from robustvit.evaluation.sanity import chance_warning, not_finite_warning

if TYPE_CHECKING:
    from robustvit.evaluation.transfer_matrix import TransferEvaluation

NAME = "transfer-matrix"
OWN = "this model"
"""What the evaluated model is called among the others."""
MEASURE_KINDS: dict[str, Kind] = {
    CLEAN_ACCURACY: "accuracy",
    "other_models_accuracy": "fraction",
    "transfer_accuracy": "accuracy",
    "white_box_accuracy": "accuracy",
}


@dataclass(frozen=True)
class Pair:
    """Images of a source on a target; without a source, the clean ones."""

    source: str | None
    target: str

    @property
    def name(self) -> str:
        """Of the condition."""
        if self.source is None:
            return CLEAN if self.target == OWN else f"{CLEAN} on {self.target}"
        return f"{self.source} -> {self.target}"


def transfer_result(evaluation: "TransferEvaluation", ledger: Ledger, provenance: Provenance) -> Result:
    images, threat = evaluation.subject.indices.numpy(), evaluation.threat
    answers = {pair: _in_order(ledger.answers(pair.name), images) for pair in evaluation.pairs()}
    clean = answers[Pair(None, OWN)]
    met = [one.correct for pair, one in answers.items() if pair.target == OWN]
    return Result(
        kind=NAME,
        title=f"{NAME} of {evaluation.plan.name}",
        measures=tuple(_measures(evaluation.names, answers)),
        provenance=provenance,
        outcomes=Outcomes(
            images,
            clean.predicted,
            clean.correct,
            np.logical_and.reduce(met),
            np.stack([one.correct for one in answers.values()], 1),
        ),
        threat=ThreatInfo(threat.norm, threat.eps, format_fraction(threat.eps)),
        conditions=tuple(_condition(pair, one) for pair, one in answers.items()),
        warnings=(*evaluation.warnings, *ledger.warnings, *_noticed(evaluation, answers)),
        notes=(
            f"{len(evaluation.names)} models were attacked with {evaluation.plan.name}, all steps on every image, and "
            "each was judged on the images of all. Accuracy counts all images, also those that the change puts right.",
        ),
        figures=tuple(_figures(evaluation.names, answers)),
    )


def _in_order(answers: Answers, images: np.ndarray) -> Answers:
    places = np.searchsorted(answers.images, images)
    return Answers(images, answers.predicted[places], answers.correct[places])


def _condition(pair: Pair, one: Answers) -> ConditionResult:
    hits, total = int(one.correct.sum()), len(one.correct)
    groups = (CLEAN,) if pair.source is None else ("self" if pair.source == pair.target else "transfer",)
    return ConditionResult(pair.name, groups, total, hits / total, wilson_interval(hits, total))


def _measures(names: Sequence[str], answers: Mapping[Pair, Answers]) -> Iterator[Measure]:
    """Of the evaluated model; the last is the strictest."""

    others, mean = names[1:], "" if len(names) == 2 else "mean, "
    about = {
        CLEAN_ACCURACY: ("", [Pair(None, OWN)]),
        "other_models_accuracy": (
            f"{mean}of the other models on images crafted on {OWN}", [Pair(OWN, other) for other in others]
        ),
        "transfer_accuracy": (f"{mean}on images crafted on the other models", [Pair(other, OWN) for other in others]),
        "white_box_accuracy": (f"on images crafted on {OWN}", [Pair(OWN, OWN)]),
    }  # fmt: skip
    for name, kind in MEASURE_KINDS.items():
        description, pairs = about[name]
        correct = np.stack([answers[pair].correct for pair in pairs])
        yield mean_accuracy_measure(name, correct, description, kind=kind)


def _figures(names: Sequence[str], answers: Mapping[Pair, Answers]) -> Iterator[Heatmap]:
    sources = (None, *names)
    correct = np.array([[answers[Pair(source, target)].correct for target in names] for source in sources])
    accuracy = correct.mean(2)  # (1 + sources, targets), the first of the clean images
    titles = {"row_title": "crafted on", "column_title": "judged on"}
    yield _map("Accuracy", ("clean images", *names), names, accuracy, titles, limits=(0.0, 1.0))
    points, title = 100 * (accuracy[1:] - accuracy[:1]), "Change from clean accuracy in points"
    yield _map(title, names, names, points, titles, scale="diverging", in_percent=False)
    both = (correct[1:] & correct[:1]).mean(2)
    note = "As suites of attacks count, transfer:surrogate=MODEL among them."
    title = "Images that are right both clean and attacked"
    yield _map(title, names, names, both, titles, limits=(0.0, 1.0), note=note)


def _map(
    title: str, rows: Sequence[str], columns: Sequence[str], values: np.ndarray, titles: dict[str, str], **more: object
) -> Heatmap:
    nested = tuple(tuple(map(float, row)) for row in values)
    return Heatmap(title, tuple(rows), tuple(columns), nested, **titles, **more)  # type: ignore[arg-type]


def _noticed(evaluation: "TransferEvaluation", answers: Mapping[Pair, Answers]) -> Iterator[ResultWarning]:
    for name in evaluation.names:
        for warning in chance_warning(evaluation.subject, int(answers[Pair(None, name)].correct.sum())):
            yield warning if name == OWN else replace(warning, observation=f"{name}: {warning.observation}")
    yield from not_finite_warning({pair.name: int((one.predicted < 0).sum()) for pair, one in answers.items()})

"""Which classes are right, and what the others are taken for; with `--on`, under attack."""

import numpy as np
import torch
from torch import Tensor

from robustvit.analysis.streaming import State, accumulate
from robustvit.core.component import component
from robustvit.core.figures import Chart, Heatmap, Line, Table, percent
from robustvit.core.finding import Finding
from robustvit.core.numbers import wilson_interval
from robustvit.data.base import class_names
from robustvit.evaluation.store import Store
from robustvit.evaluation.subject import Subject
from robustvit.losses import predicted_classes

MOST_CLASSES = 30
"""Whose accuracies are drawn; of more, those that are right least often."""


@component("analysis", "confusion")
class Confusion:
    """Accuracy of each class, and the confusion matrix."""

    def passes(self, subject: Subject) -> int:
        return len(subject.indices)

    def __call__(self, subject: Subject, store: Store) -> Finding:
        classes = subject.num_classes
        # one more column, for logits that aren't finite
        state: State = {"counts": np.zeros((classes, classes + 1), dtype=np.int64)}

        def add(indices: Tensor) -> int:
            x, y = subject.batch(indices)
            with torch.no_grad():
                predicted = predicted_classes(subject(x))
            np.add.at(state["counts"], (y.cpu().numpy(), predicted.cpu().numpy()), 1)
            return len(indices)

        steps = torch.split(subject.indices, subject.batch_size)
        accumulate(steps, state, add, store, "confusion", len(subject.indices), subject.quiet)
        names = class_names(subject.images) or tuple(str(number) for number in range(classes))
        return _finding(state["counts"], names, f"{len(subject.indices)} images of {subject.images.title}")


def _finding(counts: np.ndarray, names: tuple[str, ...], images: str) -> Finding:
    totals, right = counts.sum(1), np.diag(counts)
    seen = np.flatnonzero(totals)
    accuracy = right[seen] / totals[seen]
    drawn = seen if len(seen) <= MOST_CLASSES else np.sort(seen[np.argsort(accuracy, kind="stable")][:MOST_CLASSES])
    values = [float(right[one] / totals[one]) for one in drawn]
    intervals = tuple(wilson_interval(int(right[one]), int(totals[one])) for one in drawn)
    line = Line("accuracy", tuple(map(float, range(len(drawn)))), tuple(values), intervals)
    with np.errstate(invalid="ignore"):
        matrix = counts[:, : len(names)] / totals[:, None]
    others = np.where(np.eye(len(names), dtype=bool), -1, counts[:, : len(names)])
    rows = tuple(
        (names[one], str(totals[one]), percent(right[one] / totals[one]), _most(others[one], totals[one], names))
        for one in seen
    )
    worst = names[seen[int(np.argmin(accuracy))]]
    return Finding(
        "Classes",
        f"Of {images}, {percent(float(right.sum() / totals.sum()))} are right; the worst class is {worst} with "
        f"{percent(float(accuracy.min()))}. A row of the matrix is a true class, as fractions of its images.",
        tables=(Table("Accuracy of each class", ("class", "images", "right", "most often taken for"), rows),),
        charts=(
            Chart("Accuracy of each class", "accuracy", (line,), True, "dots", tuple(names[one] for one in drawn)),
            Heatmap("Confusion", names, names, array="confusion", row_title="true", column_title="predicted"),
        ),
        arrays={"confusion": matrix, "counts": counts},
    )


def _most(others: np.ndarray, total: int, names: tuple[str, ...]) -> str:
    most = int(np.argmax(others))
    return f"{names[most]} ({percent(others[most] / total)})" if others[most] > 0 else "-"

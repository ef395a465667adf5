"""What no believable evaluation shows."""

from robustvit.data.base import known_labels
from robustvit.evaluation.result import wilson_interval
from robustvit.evaluation.subject import Subject


def chance_warnings(subject: Subject, hits: int) -> list[str]:
    """A sentence if the clean accuracy can't be told from guessing, or from always saying the most frequent class."""
    total = len(subject.indices)
    guess = 1 / subject.num_classes
    labels = known_labels(subject.images, subject.indices)
    counts = labels.bincount().tolist() if labels is not None else []
    frequent = max(counts, default=0) / max(total, 1)
    if frequent == 1:  # of one class alone, even a perfect model says nothing else
        frequent = 0.0
    if hits == total or wilson_interval(hits, total)[0] > max(guess, frequent):
        return []
    most = f", {100 * frequent:.1f} % by always saying the most frequent class" if frequent else ""
    return [
        f"clean accuracy {100 * hits / total:.1f} % is no better than chance ({100 * guess:.1f} % by guessing{most}): "
        "wrong normalisation (mean, std), classes numbered in another order, or channels not red, green, blue?"
    ]

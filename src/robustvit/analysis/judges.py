"""Other classifiers that say what they see in images, for the analyses that ask them."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from robustvit.core.errors import UserError
from robustvit.evaluation.subject import Subject, checked_logits
from robustvit.models import eval_mode, fingerprint
from robustvit.models.reference import ModelRef, distinct_titles


def judges_for(classifiers: Sequence[ModelRef], x: Tensor) -> dict[str, nn.Module]:
    """By their names, ready for images like these."""
    names = distinct_titles(classifiers)
    return {name: ref.module_for(x) for name, ref in zip(names, classifiers, strict=True)}


def check_judges(classifiers: Sequence[ModelRef], subject: Subject, setting: str) -> None:
    """Refuse the subject itself, and models of other classes."""
    x, _ = subject.batch(subject.indices[:1])
    for name, judge in judges_for(classifiers, x).items():
        if isinstance(subject.module, nn.Module) and fingerprint(judge) == fingerprint(subject.module):
            raise UserError(f"{setting}: {name} is the attacked model; name another one")
        with eval_mode(judge):
            classes = checked_logits(judge, x).shape[1]
        if classes != subject.num_classes:
            raise UserError(f"{setting}: {name} has {classes} classes, not {subject.num_classes}")


def in_top(judge: nn.Module, x: Tensor, y: Tensor, top: int) -> np.ndarray:
    """(B,) whether the label is among the classes with the largest logits; never with logits that aren't finite."""
    with torch.no_grad():
        logits = checked_logits(judge, x)
    best = logits.topk(top, dim=1).indices
    hits: np.ndarray = ((best == y[:, None]).any(1) & torch.isfinite(logits).all(1)).long().cpu().numpy()
    return hits

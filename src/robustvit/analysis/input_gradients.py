"""What the gradient says of each pixel: pictures of it, and how often it is nothing."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from robustvit.analysis.base import network
from robustvit.analysis.checks import check_gradient, check_probe, needing
from robustvit.analysis.streaming import State, accumulate
from robustvit.attacks.base import gradient_to, logits_with_gradient
from robustvit.attacks.factors_file import GivenFactors, factors_for, read_factors
from robustvit.core.component import component
from robustvit.core.figures import Pictures, Table, percent
from robustvit.core.finding import Finding
from robustvit.core.numbers import Count
from robustvit.evaluation.store import Store
from robustvit.evaluation.subject import Subject
from robustvit.losses import cross_entropy
from robustvit.models.attention_probe import SCALED_LOGITS, Scaling, attention_blocks, probing


@component("analysis", "input_gradients")
class InputGradients:
    """Input gradients of the cross-entropy, plain and with attention scaled: fractions of exact zeros, and pictures."""

    factors: GivenFactors = 0.01
    """One factor for all blocks, or the factors.json of an evaluation."""
    shown: Count = 6
    """Images in the pictures."""

    def contents(self, subject: Subject) -> dict[str, Any]:
        return {"factors": list(read_factors(self.factors)[0])} if isinstance(self.factors, Path) else {}

    def check(self, subject: Subject) -> None:
        with needing("compares gradients with and without scaled attention", SCALED_LOGITS):
            attention_blocks(network(subject))
        check_probe(subject, Scaling(factors_for(subject, self.factors)[0]))
        check_gradient(subject)

    def passes(self, subject: Subject) -> int:
        return 4 * len(subject.indices)  # forward and backward, plain and scaled

    def __call__(self, subject: Subject, store: Store) -> Finding:
        factors, scaled_by = factors_for(subject, self.factors)
        cases = {"as it is": torch.ones_like(factors), "scaled attention": factors}
        total, (_, *shape) = len(subject.indices), subject.batch(subject.indices[:1])[0].shape
        state: State = {
            "images": np.zeros(len(cases), dtype=np.int64),
            "pixels": np.zeros(len(cases), dtype=np.int64),
            "kept": np.zeros((len(cases), min(self.shown, total), *shape), dtype=np.float32),
        }

        def add(step: tuple[int, Tensor]) -> int:
            case, rows = step
            with probing(network(subject), Scaling(list(cases.values())[case])):
                gradient = _gradient(subject, subject.indices[rows])
            state["images"][case] += int((gradient.flatten(1) == 0).all(1).sum())
            state["pixels"][case] += int((gradient == 0).sum())
            first = rows[rows < self.shown].numpy()
            state["kept"][case, first] = _shown(gradient[: len(first)])
            return len(rows)

        parts = torch.split(torch.arange(total), min(subject.batch_size, 64))
        steps = [(case, rows) for case in range(len(cases)) for rows in parts]
        accumulate(steps, state, add, store, "input gradients", len(cases) * total, subject.quiet)
        zeros = zip(cases, state["images"] / total, state["pixels"] / (total * math.prod(shape)), strict=True)
        rows = [(case, percent(images), percent(pixels)) for case, images, pixels in zeros]
        columns = ("attention", "images without any gradient", "pixels without gradient")
        shown = subject.indices[: self.shown]
        names = tuple(f"image {index}" for index in shown.tolist())
        x = subject.batch(shown)[0]
        pictures = np.stack([x.float().cpu().numpy(), *state["kept"]], axis=1)
        return Finding(
            "Input gradients",
            f"Of the cross-entropy{scaled_by}. {len(subject.indices)} images of {subject.images.title}. In the "
            "pictures gray is zero; each is scaled to its own largest value.",
            tables=(Table("Gradients that are exactly zero", columns, tuple(rows)),),
            pictures=(Pictures("Image and gradient", "pictures", ("image", *cases), names),),
            arrays={"pictures": pictures.astype(np.float32)},
        )


def _gradient(subject: Subject, indices: Tensor) -> Tensor:
    x, y = subject.batch(indices)
    point = x.requires_grad_()
    with torch.enable_grad():
        return gradient_to(point, cross_entropy(logits_with_gradient(subject.model, point), y).sum())


def _shown(gradient: Tensor) -> np.ndarray:
    most = gradient.abs().flatten(1).amax(1).clamp_min(1e-30).view(-1, 1, 1, 1)
    shown: np.ndarray = (0.5 + 0.5 * gradient / most).float().cpu().numpy()
    return shown

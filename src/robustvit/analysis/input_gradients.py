"""What the gradient says of each pixel: pictures of it, and how often it is nothing."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from robustvit.attacks.base import gradient_to, logits_with_gradient
from robustvit.attacks.factor_search import module_of
from robustvit.attacks.factors_file import GivenFactors, factors_for, read_factors
from robustvit.core.component import component
from robustvit.core.figures import Pictures, Table, percent
from robustvit.core.finding import Finding
from robustvit.core.numbers import Count
from robustvit.evaluation.store import Store
from robustvit.evaluation.subject import Subject
from robustvit.losses import cross_entropy
from robustvit.models.attention_probe import Scaling, attention_blocks, probing


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
        attention_blocks(module_of(subject))

    def passes(self, subject: Subject) -> int:
        return 4 * len(subject.indices)  # forward and backward, plain and scaled

    def __call__(self, subject: Subject, store: Store) -> Finding:
        module = module_of(subject)
        factors, scaled_by = factors_for(subject, self.factors)
        rows, kept = [], {}
        for case, values in (("as it is", torch.ones_like(factors)), ("scaled attention", factors)):
            with probing(module, Scaling(values)):
                zero_images, zero_pixels, first = self._gradients(subject)
            rows.append((case, percent(zero_images), percent(zero_pixels)))
            kept[case] = first
        columns = ("attention", "images without any gradient", "pixels without gradient")
        shown = subject.indices[: self.shown]
        names = tuple(f"image {index}" for index in shown.tolist())
        x = subject.batch(shown)[0]
        pictures = np.stack([x.float().cpu().numpy(), *(_shown(gradient) for gradient in kept.values())], axis=1)
        return Finding(
            "Input gradients",
            f"Of the cross-entropy{scaled_by}. {len(subject.indices)} images of {subject.images.title}. In the "
            "pictures gray is zero; each is scaled to its own largest value.",
            tables=(Table("Gradients that are exactly zero", columns, tuple(rows)),),
            pictures=(Pictures("Image and gradient", "pictures", ("image", *kept), names),),
            arrays={"pictures": pictures.astype(np.float32)},
        )

    def _gradients(self, subject: Subject) -> tuple[float, float, Tensor]:
        images, pixels, total = 0, 0, 0
        first: list[Tensor] = []
        for part in torch.split(subject.indices, min(subject.batch_size, 64)):
            x, y = subject.batch(part)
            point = x.requires_grad_()
            with torch.enable_grad():
                loss = cross_entropy(logits_with_gradient(subject.model, point), y).sum()
                gradient = gradient_to(point, loss)
            images += int((gradient.flatten(1) == 0).all(1).sum())
            pixels += int((gradient == 0).sum())
            total += gradient.numel()
            if sum(len(part) for part in first) < self.shown:
                first.append(gradient)
        return images / len(subject.indices), pixels / total, torch.cat(first)[: self.shown]


def _shown(gradient: Tensor) -> np.ndarray:
    most = gradient.abs().flatten(1).amax(1).clamp_min(1e-30).view(-1, 1, 1, 1)
    shown: np.ndarray = (0.5 + 0.5 * gradient / most).float().cpu().numpy()
    return shown

"""A saved set of adversarial images, judged again on any model."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from robustvit.attacks.base import Classifier
from robustvit.core.devices import resolve_device
from robustvit.core.errors import UserError, check_counts
from robustvit.data.base import Split, as_pixels
from robustvit.data.open import images_from
from robustvit.evaluation.saved import SavedSet
from robustvit.evaluation.subject import checked_logits
from robustvit.losses import is_fooled
from robustvit.models import eval_mode
from robustvit.threats import LpBall


@dataclass(frozen=True)
class Verdict:
    """How a saved set fares against a model; the last three are None where the clean images weren't given."""

    images: int
    fooled: int
    threat: LpBall
    inside: int | None
    """Of the images, how many lie within the threat."""
    right: int | None
    """How many clean images the model gets right."""
    fooled_of_right: int | None
    notes: tuple[str, ...] = ()
    """What the evaluation that made them said of how they were judged."""


def verify(
    file: str | Path,
    model: Classifier,
    *,
    data: Any = None,
    split: Split = "test",
    batch_size: int = 128,
    device: str = "auto",
) -> Verdict:
    """Judge the images of `evaluate(..., save_images=True)` on a model; with `data`, also against the clean images."""
    saved = SavedSet.load(file)
    check_counts(batch_size=batch_size)
    place = resolve_device(device, model)
    clean = None if data is None else images_from(data, split)
    if clean is not None and len(saved.indices) and int(saved.indices.max()) >= len(clean):
        raise UserError(f"{clean.title} has {len(clean)} images, the saved set speaks of image {saved.indices.max()}")
    if isinstance(model, torch.nn.Module):
        model = model.to(place)
    fooled, counts = 0, torch.zeros(3, dtype=torch.int64)
    with eval_mode(model), torch.no_grad():
        for index, x_adv, y in saved.batches(batch_size):
            falls = is_fooled(_logits(model, x_adv.to(place), y), y.to(place)).cpu()
            fooled += int(falls.sum())
            if clean is None:
                continue
            images, labels = clean.take(index)
            if not torch.equal(labels, y) or images.shape != x_adv.shape:
                raise UserError(f"{clean.title}: not the images that {file} was made from ({saved.facts.get('data')})")
            x = as_pixels(images)
            knows = ~is_fooled(_logits(model, x.to(place), y), y.to(place)).cpu()
            counts += torch.stack([saved.threat.contains(x, x_adv), knows, knows & falls]).sum(1)
    inside, right, both = (None, None, None) if clean is None else counts.tolist()
    notes = tuple(map(str, saved.facts.get("notes", ())))
    return Verdict(len(saved.indices), fooled, saved.threat, inside, right, both, notes)


def _logits(model: Classifier, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    logits = checked_logits(model, x)
    if int(y.max()) >= logits.shape[1]:
        raise UserError(f"the model's outputs {tuple(logits.shape)} don't fit labels up to {int(y.max())}")
    return logits

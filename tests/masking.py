"""How a model with masked gradients fares: what warns of it, and how much better it looks than it is."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

import robustvit as rv
from planted import REFUSED
from robustvit.core.adversarial import FILE, Adversarial
from robustvit.core.errors import UserError
from robustvit.core.streams import seeded_subset
from robustvit.evaluation.probes import PROBES, Probed
from robustvit.evaluation.sanity import PROBED, probe_model
from robustvit.evaluation.subject import open_subject
from robustvit.evaluation.suite import suite_from
from robustvit.losses import is_fooled

IMAGES = 48
"""That AutoAttack meets."""


def warned_before(model: nn.Module, data: Any, threat: rv.LpBall, suite: str = "autoattack") -> list[str]:
    """The names of the warnings before a suite, or that the model is refused."""
    try:
        with open_subject(model, data, seed=0).ready() as subject:
            plan, _ = suite_from(suite).plan(threat).fitted(subject.num_classes, threat)
            return [warning.name for warning in probe_model(subject, plan, threat)]
    except UserError:
        return [REFUSED]


def fractions(model: nn.Module, data: Any, threat: rv.LpBall) -> dict[str, float | None]:
    """What every probe measures on the images of the checks, and the clean accuracy on them."""
    with open_subject(model, data, seed=0).ready() as subject:
        count = min(PROBED, len(subject.indices))
        x, y = subject.batch(subject.indices[seeded_subset(len(subject.indices), count, subject.seed, "sanity")])
        with torch.no_grad():
            logits = subject.model(x)
        seen = Probed(subject, threat, x, y, logits, is_random=False)
        found = {probe.name: probe.measure(seen) for probe in PROBES}
    clean = float((logits.argmax(1) == y).float().mean())
    return {"clean": clean} | {name: None if one is None else one[0] for name, one in found.items()}


@dataclass(frozen=True)
class Twin:
    """A healthy model, and the adversarial images that AutoAttack finds for it."""

    robust: int
    adversarial: Adversarial


def attacked_twin(model: nn.Module, data: Any, threat: rv.LpBall, folder: Path) -> Twin:
    result = _autoattack(model, data, threat, folder)
    return Twin(int(result.is_robust.sum()), Adversarial.load(Path(result.folder) / FILE))


def overstated(model: nn.Module, twin: Twin, data: Any, threat: rv.LpBall, folder: Path) -> tuple[rv.Result, int]:
    """AutoAttack's result, and how many images it calls robust that the twin's adversarial images show not to be.

    Where both answer alike, this is how much the masking hides; else it is less than that.
    """
    result = _autoattack(model, data, threat, folder)
    found = twin.adversarial
    with torch.no_grad():
        fooled = is_fooled(model(torch.tensor(found.images)), torch.from_numpy(found.labels))
    broken = set(found.index[fooled.numpy()].tolist())
    return result, len(broken & set(result.outcomes.index[result.is_robust].tolist()))


def _autoattack(model: nn.Module, data: Any, threat: rv.LpBall, folder: Path) -> rv.Result:
    return rv.evaluate(
        model, data, suite="autoattack", threat=threat, images=IMAGES, run=folder, save_images=True, quiet=True
    )

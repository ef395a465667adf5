"""Where the object of a picture lies: in masks, or, without any, in the middle; and what maps have there."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from robustvit.core.binary import map_array
from robustvit.core.errors import UserError
from robustvit.core.figures import Interval
from robustvit.core.numbers import mean_interval
from robustvit.evaluation.subject import Subject


def masks_contents(masks: Path | None) -> dict[str, Any]:
    """What a finding depends on besides the path."""
    if masks is None:
        return {}
    map_array(masks)  # a UserError where it is no array
    return {"masks": hashlib.sha256(masks.read_bytes()).hexdigest()}


def where(masks: Path | None) -> str:
    return "the middle half of each side" if masks is None else "the masks"


def inside_of(subject: Subject, masks: Path | None, grid: tuple[int, int], setting: str) -> Tensor:
    """(images or 1, h, w) the fraction of each position of a grid that counts as inside."""
    if masks is None:
        middle = torch.zeros(1, 4, 4)
        middle[:, 1:3, 1:3] = 1
        height, width = subject.batch(subject.indices[:1])[0].shape[2:]
        pixels = F.interpolate(middle[None], size=(height, width), mode="nearest")[0]
    else:
        stored = map_array(masks)
        if stored.ndim != 3 or len(stored) != len(subject.images):
            wanted = f"({len(subject.images)}, H, W), one for each image of {subject.images.title}"
            raise UserError(f"{setting}: {masks} has the shape {stored.shape}, not {wanted}")
        pixels = torch.from_numpy(np.asarray(stored[subject.indices.numpy()] > 0)).float()
    inside = F.adaptive_avg_pool2d(pixels, grid)
    if not (inside.flatten(1).sum(1) > 0).all() or not (inside.flatten(1).mean(1) < 1).all():
        raise UserError(f"{setting}: {masks} has an image without any object, or with nothing else")
    return inside


def weighted_mean(maps: Tensor, weights: Tensor) -> Tensor:
    """Of (images, ..., h, w) over the positions, by (images or 1, h, w) weights."""
    weights = weights.view(len(weights), *(1,) * (maps.ndim - 3), *weights.shape[1:])
    return (maps * weights).sum((-2, -1)) / weights.sum((-2, -1))


def mean_with_interval(values: Tensor) -> tuple[float, Interval]:
    """Over images; without an interval where they don't differ."""
    mean = float(values.mean())
    return mean, mean_interval(values.double().numpy(), -np.inf, np.inf) or (mean, mean)


def difference_text(values: Tensor) -> str:
    mean, (low, high) = mean_with_interval(values)
    return f"{mean:+.3f} ({low:+.3f} to {high:+.3f})"

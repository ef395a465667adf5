"""Clean image, change and adversarial image as PNG data URIs."""

import base64
import io
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from PIL import Image

from robustvit.reporting.read import Evaluation

LARGEST_SIDE = 256
"""Pixels; larger images are shrunk, or a page of several runs would weigh tens of megabytes."""
PIXELATED_BELOW = 96
"""Images with shorter sides are enlarged pixel by pixel, as smoothing would hide what the attack did."""


@dataclass(frozen=True)
class Picture:
    index: int
    label: int
    predicted: int
    confidence_clean: float
    confidence_adversarial: float
    clean: str
    change: str
    adversarial: str
    is_small: bool


def pictures(evaluation: Evaluation) -> Iterator[Picture]:
    """The examples kept; grey in `change` is none, black and white are the most that `change_scale` tells."""
    kept = evaluation.examples
    if kept is None:
        return
    for row in range(len(kept.index)):
        clean, adversarial = (
            np.nan_to_num(images[row].astype(np.float32)) for images in (kept.clean, kept.adversarial)
        )
        delta = adversarial - clean  # (3, H, W)
        most = evaluation.eps if evaluation.norm == "inf" else float(np.abs(delta).max())
        change = (delta + most) / (2 * most) if most > 0 else np.full_like(delta, 0.5)
        yield Picture(
            index=int(kept.index[row]),
            label=int(kept.label[row]),
            predicted=int(kept.predicted[row]),
            confidence_clean=float(kept.confidence_clean[row]),
            confidence_adversarial=float(kept.confidence_adversarial[row]),
            clean=data_uri(clean),
            change=data_uri(change),
            adversarial=data_uri(adversarial),
            is_small=min(clean.shape[1:]) < PIXELATED_BELOW,
        )


def change_scale(evaluation: Evaluation) -> str:
    # in other norms than Linf a single pixel may take anything up to all of eps, most often far less
    if evaluation.norm == "inf":
        return f"grey is none, black less by {evaluation.eps_text}, white more by as much"
    return "grey is none, black and white are the image's own largest change"


def data_uri(image: np.ndarray) -> str:
    """A (3, H, W) image in [0, 1] as PNG."""
    levels = np.round(image.clip(0, 1) * 255).astype(np.uint8).transpose(1, 2, 0)
    picture = Image.fromarray(levels)
    picture.thumbnail((LARGEST_SIDE, LARGEST_SIDE))
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"

"""A few fooled images kept for the report's pictures."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from robustvit.core.errors import UserError
from robustvit.core.files import read_arrays, write_arrays
from robustvit.core.progress import say

KEPT = 8


class Examples:
    """The first images that were fooled, with what the model said before and after."""

    def __init__(self, path: Path, clean_logits: Any) -> None:
        self._path = path
        self._clean_logits = clean_logits
        self._kept = _load(path)

    def offer(self, batch: Tensor, x: Tensor, x_adv: Tensor, y: Tensor, logits: Tensor, fooled: Tensor) -> None:
        known = self._kept.get("index", np.zeros(0, int))
        if len(known) >= KEPT:
            return
        fresh = fooled.cpu() & ~torch.isin(batch, torch.from_numpy(known))
        rows = fresh.nonzero().squeeze(1)[: KEPT - len(known)].to(x.device)
        if not len(rows):
            return
        with torch.no_grad():
            before = self._clean_logits(x[rows]).softmax(1)
        after = logits[rows].softmax(1)
        true, wrong = y[rows, None], after.argmax(1, keepdim=True)
        new = {
            "index": batch[rows.cpu()],
            "clean": x[rows].half(),
            "adversarial": x_adv[rows].half(),
            "label": y[rows],
            "predicted": wrong.squeeze(1),
            "confidence_clean": before.gather(1, true).squeeze(1).float(),
            "confidence_adversarial": after.gather(1, wrong).squeeze(1).float(),
        }
        arrays = {key: value.cpu().numpy() for key, value in new.items()}
        if self._kept:
            arrays = {key: np.concatenate([self._kept[key], value]) for key, value in arrays.items()}
        write_arrays(self._path, arrays)
        self._kept = arrays


def _load(path: Path) -> dict[str, np.ndarray]:
    """What was kept before; pictures that can't be read are not worth stopping for."""
    try:
        return read_arrays(path) if path.exists() else {}
    except UserError:
        say(f"{path}: damaged; new pictures take its place")
        return {}

"""A few fooled images kept for the report's pictures."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from robustvit.core.files import write_atomic

KEPT = 8


class Examples:
    """The first images that fell, with what the model thought before and after; nothing is kept without a folder."""

    def __init__(self, path: Path | None, clean_logits: Any = None) -> None:
        self._path = path
        self._clean_logits = clean_logits
        self._full = path is None or (path.exists() and len(_load(path)["index"]) >= KEPT)

    def offer(self, batch: Tensor, x: Tensor, x_adv: Tensor, y: Tensor, logits: Tensor, fooled: Tensor) -> None:
        if self._full or not fooled.any():
            return
        assert self._path is not None
        rows = fooled.nonzero().squeeze(1)[:KEPT]
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
        if self._path.exists():
            old = _load(self._path)
            arrays = {key: np.concatenate([old[key], value])[:KEPT] for key, value in arrays.items()}
        buffer = io.BytesIO()
        np.savez(buffer, **arrays)
        write_atomic(self._path, lambda file: file.write(buffer.getvalue()))
        self._full = len(arrays["index"]) >= KEPT


def _load(path: Path) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=False) as arrays:
        return dict(arrays)

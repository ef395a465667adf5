"""A few fooled images kept for the report's pictures."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from robustvit.core.errors import UserError
from robustvit.core.examples import Examples, read_examples, write_examples
from robustvit.core.progress import say

KEPT = 8


class ExampleKeeper:
    """A sink that keeps the first images that were fooled, with what the model said before and after."""

    def __init__(self, path: Path, clean_logits: Any) -> None:
        self._path = path
        self._clean_logits = clean_logits
        self._kept = _load(path)

    def offer(self, batch: Tensor, x: Tensor, x_adv: Tensor, y: Tensor, logits: Tensor, fooled: Tensor) -> None:
        count = 0 if self._kept is None else len(self._kept)
        if count >= KEPT:
            return
        fresh = fooled.cpu()
        if self._kept is not None:
            fresh = fresh & ~torch.isin(batch, torch.from_numpy(self._kept.index))
        rows = fresh.nonzero().squeeze(1)[: KEPT - count].to(x.device)
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
        examples = Examples(**{key: value.cpu().numpy() for key, value in new.items()})
        if self._kept is not None:
            examples = self._kept.joined(examples)
        write_examples(self._path, examples)
        self._kept = examples


def _load(path: Path) -> Examples | None:
    """What was kept before; pictures that can't be read are not worth stopping for."""
    try:
        return read_examples(path) if path.exists() else None
    except UserError:
        say(f"{path}: damaged; new pictures take its place")
        return None

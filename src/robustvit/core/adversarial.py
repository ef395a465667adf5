"""Adversarial images that an evaluation kept: arrays in memory, or an .npy file with a .json of the same name."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from robustvit.core.errors import UserError
from robustvit.core.files import is_file, read_json

FILE = "adversarial.npy"
"""(n, 3, H, W) float32; which images they are, and all else, is in the .json of the same name."""


@dataclass(frozen=True)
class Adversarial:
    """n images that fool a model, with pixels in [0, 1]; of a file, they are read when they are asked for."""

    index: np.ndarray
    """(n,) which images of the data they were made from."""
    images: np.ndarray
    """(n, 3, H, W) float32."""
    labels: np.ndarray
    """(n,) true classes."""
    facts: dict[str, Any] = field(default_factory=dict)
    """Threat, suite, model and data that they were made with."""

    def __len__(self) -> int:
        return len(self.index)

    @classmethod
    def load(cls, path: str | Path) -> "Adversarial":
        """The images that `evaluate --save-images` wrote."""
        if not isinstance(path, str | Path):
            raise UserError(f"file: the path of a saved set, not {path!r}")
        path = Path(path)
        metadata = path.with_suffix(".json")
        if not is_file(path) or not is_file(metadata):
            raise UserError(
                f"{path}: no saved set (an .npy with a .json of the same name, from evaluate --save-images)"
            )
        facts = read_json(metadata)
        try:
            images = np.load(path, mmap_mode="r", allow_pickle=False)
            index, labels = (np.array(facts[key], dtype=np.int64).reshape(-1) for key in ("indices", "labels"))
        except (ValueError, KeyError, TypeError, EOFError, OverflowError) as error:
            raise UserError(f"{path}: not a saved set ({error})") from None
        if images.ndim != 4 or images.dtype != np.float32 or not len(images) == len(index) == len(labels):
            raise UserError(f"{path}: {images.dtype} {images.shape} does not fit {len(index)} indices")
        if len(labels) and (int(labels.min()) < 0 or int(index.min()) < 0):
            raise UserError(f"{metadata}: labels and indices must not be negative")
        return cls(index, images, labels, facts)

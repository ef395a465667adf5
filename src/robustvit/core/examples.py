"""A few fooled images for the report's pictures: what examples.npz holds, written by an evaluation."""

from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from robustvit.core.binary import INDICES, NUMBERS, ArrayType, read_arrays
from robustvit.core.checksum import KEY, row_checksums
from robustvit.core.files import write_arrays
from robustvit.core.readers import unreadable

EXAMPLES = "examples.npz"
_IMAGES = ArrayType("f", 4)


@dataclass(frozen=True)
class Examples:
    """Images that were fooled, n of them."""

    index: np.ndarray
    clean: np.ndarray
    """(n, 3, H, W) in [0, 1]."""
    adversarial: np.ndarray
    label: np.ndarray
    predicted: np.ndarray
    confidence_clean: np.ndarray
    """(n,) probability of the true label on the clean image."""
    confidence_adversarial: np.ndarray
    """(n,) probability of the predicted label on the adversarial image."""

    def __len__(self) -> int:
        return len(self.index)

    def joined(self, more: "Examples") -> "Examples":
        pairs = ((getattr(self, field.name), getattr(more, field.name)) for field in fields(Examples))
        return Examples(*(np.concatenate(pair) for pair in pairs))


_TYPES = {"clean": _IMAGES, "adversarial": _IMAGES, "confidence_clean": NUMBERS, "confidence_adversarial": NUMBERS}


def write_examples(path: Path, examples: Examples) -> None:
    arrays = vars(examples)
    write_arrays(path, {**arrays, KEY: row_checksums(arrays, path.parent)})


def read_examples(path: Path) -> Examples:
    types = {field.name: _TYPES.get(field.name, INDICES) for field in fields(Examples)}
    arrays = read_arrays(path, {**types, KEY: INDICES})
    if not np.array_equal(arrays.pop(KEY), row_checksums(arrays, path.parent)):
        raise unreadable(path, "its content was changed, or is of another evaluation (the checksums differ)")
    examples = Examples(**arrays)
    shape = examples.clean.shape
    if shape != examples.adversarial.shape or shape[1] != 3 or not all(shape[1:]):
        raise unreadable(path, f"clean and adversarial images of {shape} and {examples.adversarial.shape}")
    if any(array.size and array.min() < 0 for array in (examples.index, examples.label, examples.predicted)):
        raise unreadable(path, "images and classes have numbers from 0 on")
    return examples


def magnified_change(clean: np.ndarray, adversarial: np.ndarray, norm: str, eps: float) -> tuple[np.ndarray, float]:
    """The change between images in [0, 1] as one of them, and how often it was magnified.

    Gray is none; black and white are the largest that may be (Linf) or was: in other norms a single pixel may take
    anything up to all of eps, most often far less.
    """
    delta = adversarial - clean
    most = eps if norm == "inf" else float(np.abs(delta).max())
    magnified = 1 / (2 * most) if most > 0 else 1.0
    return 0.5 + delta * magnified, magnified

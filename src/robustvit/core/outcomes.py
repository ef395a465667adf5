"""What became of each image of an evaluation: arrays next to the result."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from robustvit.core.binary import FLAGS, INDICES, read_arrays
from robustvit.core.readers import unreadable

OUTCOMES = "outcomes.npz"


@dataclass(frozen=True)
class Outcomes:
    """Per image, as arrays of one length."""

    index: np.ndarray
    """(N,) which images of the data."""
    predicted: np.ndarray
    """(N,) class of the clean image (under the first condition); -1 where logits aren't finite."""
    correct: np.ndarray
    """(N,) the clean image is classified correctly."""
    robust: np.ndarray
    """(N,) and so it is under every attack or condition that all images meet."""

    def __post_init__(self) -> None:
        if len({len(array) for array in vars(self).values()}) > 1 or not len(self.index):
            raise ValueError("arrays of one length above 0 are expected")
        if self.correct.dtype != bool or self.robust.dtype != bool:
            raise ValueError("correct and robust are arrays of booleans")
        if self.index.min() < 0 or len(np.unique(self.index)) < len(self.index):
            raise ValueError("index names every image once")


def read_outcomes(folder: Path, remedy: str) -> Outcomes:
    path = folder / OUTCOMES
    types = {"index": INDICES, "predicted": INDICES, "correct": FLAGS, "robust": FLAGS}
    arrays = read_arrays(path, types, remedy)
    try:
        return Outcomes(**arrays)
    except ValueError as error:
        raise unreadable(path, f"not the outcomes of a result ({error})", remedy) from None

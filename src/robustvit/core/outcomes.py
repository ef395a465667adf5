"""What became of each image of an evaluation: arrays next to the result."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from robustvit.core.binary import FLAGS, INDICES, ArrayType, read_arrays
from robustvit.core.readers import unreadable

OUTCOMES = "outcomes.npz"


@dataclass(frozen=True)
class Outcomes:
    """Per image, as arrays of one length; None for what the evaluation didn't ask."""

    index: np.ndarray
    """(N,) which images of the data."""
    predicted: np.ndarray | None = None
    """(N,) class of the clean image; -1 where logits aren't finite."""
    correct: np.ndarray | None = None
    """(N,) the clean image is classified correctly."""
    robust: np.ndarray | None = None
    """(N,) right under every attack or condition that it met."""
    under: np.ndarray | None = None
    """(N, C) right under each condition of the result, in their order; None where not every image met all of them."""

    def __post_init__(self) -> None:
        known = self.arrays()
        if len({len(array) for array in known.values()}) > 1 or not len(self.index):
            raise ValueError("arrays of one length above 0 are expected")
        if any(known[name].dtype != bool for name in ("correct", "robust", "under") if name in known):
            raise ValueError("correct, robust and under are arrays of booleans")
        if self.index.min() < 0 or len(np.unique(self.index)) < len(self.index):
            raise ValueError("index names every image once")

    def arrays(self) -> dict[str, np.ndarray]:
        """Those that are known, by name."""
        return {name: array for name, array in vars(self).items() if array is not None}


def read_outcomes(folder: Path, remedy: str) -> Outcomes:
    path = folder / OUTCOMES
    types = {"index": INDICES, "predicted": INDICES, "correct": FLAGS, "robust": FLAGS, "under": ArrayType("b", 2)}
    arrays = read_arrays(path, types, remedy, optional=("predicted", "correct", "robust", "under"))
    try:
        return Outcomes(**arrays)
    except ValueError as error:
        raise unreadable(path, f"not the outcomes of a result ({error})", remedy) from None

"""Numbers for each generated image in files next to them, and the images that are chosen by these."""

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Literal

import numpy as np

from robustvit.core.binary import map_array
from robustvit.core.errors import UserError
from robustvit.core.files import is_file

Kind = Literal["scores", "distances"]
"""A classifier's confidence in the label; the distance to the nearest training image."""


def numbers_path(images: Path, kind: Kind) -> Path:
    """`scores-00000.npy` of `images-00000.npy`, `x.scores.npy` of any other file."""
    if images.name.startswith("images-"):
        return images.with_name(f"{kind}-{images.name.removeprefix('images-')}")
    return images.with_name(f"{images.name}.{kind}.npy")


def read_numbers(files: Sequence[Path], counts: Sequence[int], kind: Kind) -> np.ndarray:
    """(N,) of all files, which have so many images each."""
    parts = []
    for file, count in zip(files, counts, strict=True):
        path = numbers_path(file, kind)
        if not is_file(path):
            option = "" if kind == "scores" else " --reference DATA"
            raise UserError(f"{path}: not there; robustvit score {file.parent} --model MODEL{option} writes it")
        numbers = map_array(path, remedy="remove it and score the images anew")
        if numbers.shape != (count,) or numbers.dtype.kind != "f" or not np.isfinite(numbers).all():
            raise UserError(f"{path}: expected {count} finite numbers; remove it and score the images anew")
        parts.append(numbers)
    return np.concatenate(parts)


def best_of_each_class(labels: np.ndarray, scores: np.ndarray, fraction: float, allowed: np.ndarray) -> np.ndarray:
    """Sorted indices: of the allowed images of each class, the fraction with the highest scores, at least one.

    Of equal scores, the first images are taken.
    """
    exact = Fraction(fraction).limit_denominator(1_000_000)
    chosen = []
    for label in np.unique(labels[allowed]):
        rows = np.flatnonzero((labels == label) & allowed)
        order = np.argsort(-scores[rows], kind="stable")
        chosen.append(rows[order[: max(1, int(len(rows) * exact))]])
    return np.sort(np.concatenate(chosen)) if chosen else np.empty(0, np.int64)

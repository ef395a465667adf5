"""Numbers for each generated image in files next to them, and the images that are chosen by these."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from pydantic import TypeAdapter

from robustvit.core.binary import map_array
from robustvit.core.checksum import read_json_with_checksum, with_checksum
from robustvit.core.errors import UserError
from robustvit.core.files import is_file, is_folder, write_json
from robustvit.data.arrays import ArrayImages
from robustvit.data.base import content_fingerprint

Kind = Literal["scores", "distances"]
"""A classifier's confidence in the label; the distance to the nearest training image."""


@dataclass(frozen=True)
class ImageFile:
    """Images and labels of one of the files of a set."""

    path: Path
    labels: Path
    """May be the same file."""
    images: ArrayImages


@dataclass(frozen=True)
class _Known:
    """Images that numbers belong to."""

    sha256: str
    """Of all pixels and labels."""
    files: tuple[tuple[int, int], ...]
    """Size and time of the files: while these are the same, so is the content."""


@dataclass
class Description:
    """Whose numbers there are, and of which images."""

    by: str
    images: dict[str, _Known] = field(default_factory=dict)
    """By the name of the file."""

    def holds(self, file: ImageFile) -> bool:
        """Whether the numbers are of these images."""
        known = self.images.get(file.path.name)
        return known is not None and (known.files == _state(file) or known.sha256 == _sha256(file))

    def add(self, file: ImageFile) -> None:
        self.images[file.path.name] = _Known(_sha256(file), _state(file))

    def write(self, path: Path) -> None:
        write_json(path, with_checksum(asdict(self)))


def _state(file: ImageFile) -> tuple[tuple[int, int], ...]:
    states = (path.stat() for path in (file.path, file.labels))
    return tuple((state.st_size, state.st_mtime_ns) for state in states)


def _sha256(file: ImageFile) -> str:
    return content_fingerprint(file.images, torch.arange(len(file.images)))


def description_path(path: Path, kind: Kind) -> Path:
    """Next to the numbers of a folder or file of images."""
    return path / f"{kind}.json" if is_folder(path) else path.with_name(f"{path.name}.{kind}.json")


def read_description(path: Path, kind: Kind) -> Description | None:
    """None where there is none."""
    about = description_path(path, kind)
    if not is_file(about):
        return None
    schema = TypeAdapter(Description)
    return schema.validate_python(read_json_with_checksum(about, schema, f"description of {kind}", "remove it"))


def numbers_path(images: Path, kind: Kind) -> Path:
    """`scores-00000.npy` of `images-00000.npy`, `x.scores.npy` of any other file."""
    if images.name.startswith("images-"):
        return images.with_name(f"{kind}-{images.name.removeprefix('images-')}")
    return images.with_name(f"{images.name}.{kind}.npy")


def read_numbers(path: Path, files: Sequence[ImageFile], kind: Kind) -> np.ndarray:
    """(N,) of all files of this folder, or of this one."""
    parts, option = [], "" if kind == "scores" else " --reference DATA"
    command = f"robustvit score {path} --model MODEL{option}"
    for file in files:
        target, count = numbers_path(file.path, kind), len(file.images)
        if not is_file(target):
            raise UserError(f"{target}: not there; {command} writes it")
        numbers = map_array(target, remedy="remove it and score the images anew")
        if numbers.shape != (count,) or numbers.dtype.kind != "f" or not np.isfinite(numbers).all():
            raise UserError(f"{target}: expected {count} finite numbers; remove it and score the images anew")
        parts.append(numbers)
    known = read_description(path, kind)
    for file in files:
        if known is None or not known.holds(file):
            raise UserError(
                f"{numbers_path(file.path, kind)}: not the {kind} of the images there now; {command} writes them anew"
            )
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

"""Adversarial images that an evaluation kept: arrays in memory, or an .npy file with a .json of the same name."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import ConfigDict, Field, TypeAdapter
from typing_extensions import TypedDict

from robustvit.core.binary import map_array
from robustvit.core.checksum import read_json_with_checksum
from robustvit.core.errors import UserError
from robustvit.core.files import is_file

FILE = "adversarial.npy"
"""(n, 3, H, W) float32; which images they are, and all else, is in the .json of the same name."""

REMEDY = "save the images anew with evaluate --save-images"

_Numbers = list[Annotated[int, Field(ge=0, lt=1 << 62, strict=True)]]


class _Facts(TypedDict):
    """What the .json must say; more is kept as it is."""

    __pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[misc]
    indices: _Numbers
    labels: _Numbers
    checksums: _Numbers
    """Of the pixels of each image."""


_FACTS: TypeAdapter[Any] = TypeAdapter(_Facts)


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
        facts = read_json_with_checksum(metadata, _FACTS, "description of a saved set", REMEDY)
        images = map_array(path, remedy=REMEDY)
        index, labels = (np.array(facts[key], dtype=np.int64) for key in ("indices", "labels"))
        lengths = {len(index), len(labels), len(facts["checksums"]), len(images) if images.ndim else -1}
        if images.ndim != 4 or images.shape[1] != 3 or images.dtype != np.float32 or len(lengths) > 1:
            raise UserError(f"{path}: {images.dtype} {images.shape} does not fit {len(index)} indices; {REMEDY}")
        if len(set(facts["indices"])) < len(index):
            raise UserError(f"{metadata}: an image is named twice among the indices; {REMEDY}")
        return cls(index, images, labels, facts)

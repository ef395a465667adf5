"""What a row of a ledger holds: the outcome of an image in a stage, the answers to a batch, or a warning."""

import base64
from typing import Annotated, Any, Literal, NamedTuple, NotRequired

import numpy as np
from pydantic import ConfigDict, Field, TypeAdapter
from typing_extensions import TypedDict

from robustvit.core.journal import Row
from robustvit.core.readers import conforming, unreadable
from robustvit.core.result import ResultWarning

Outcome = Literal["correct", "wrong", "fooled", "survived", "unverified"]
Order = Literal["ranked", "nearest"]
"""Of classes as targets: by the clean logits, or by how near their boundaries look."""
CLEAN = "clean"
"""The stage of the unchanged images."""
REMEDY = "remove this line to have it computed again"

_Index = Annotated[int, Field(ge=0, lt=1 << 31)]
_Cost = Annotated[float, Field(ge=0)]


class Answers(NamedTuple):
    """What the model said under a condition, by image."""

    images: np.ndarray
    predicted: np.ndarray
    correct: np.ndarray
    first_wrong: np.ndarray | None = None
    """The first of several variants that was wrong, -1 where none was; None where there was one."""


class ImageRow(TypedDict):
    """Of an image in a stage; further keys are kept for people."""

    __pydantic_config__ = ConfigDict(extra="allow", strict=True)  # type: ignore[misc]
    stage: str
    image: _Index
    outcome: Outcome
    predicted: NotRequired[Annotated[int, Field(ge=-1, lt=1 << 31)]]
    margin: NotRequired[float | None]
    seconds: NotRequired[_Cost]
    passes: NotRequired[_Cost]
    ranked: NotRequired[list[_Index]]
    nearest: NotRequired[list[_Index]]


class _BatchRow(TypedDict):
    """Of a batch under a condition, its numbers in base64."""

    stage: str
    images: str
    predicted: str
    correct: str
    first_wrong: NotRequired[str]


class _WarningRow(TypedDict):
    warning: ResultWarning


_IMAGE, _BATCH, _WARNING = (TypeAdapter[Any](kind) for kind in (ImageRow, _BatchRow, _WarningRow))


def parse_row(row: Row, place: object) -> tuple[str, ImageRow | Answers | ResultWarning]:
    """The stage or condition and what the row says of it."""
    what = "row of a ledger"
    if "warning" in row:
        return "", conforming(row, _WARNING, place, what, REMEDY)["warning"]
    if "images" in row:
        batch = conforming(row, _BATCH, place, what, REMEDY)
        try:
            return batch["stage"], _answers(batch)
        except ValueError as error:
            raise unreadable(place, f"not a {what} ({error})", REMEDY) from None
    image = conforming(row, _IMAGE, place, what, REMEDY)
    if (image["stage"] == CLEAN) != (image["outcome"] in ("correct", "wrong")):
        raise unreadable(place, f"not a {what} (no stage '{image['stage']}' ends {image['outcome']})", REMEDY)
    if image["stage"] == CLEAN and "predicted" not in image:
        raise unreadable(place, f"not a {what} (predicted is missing)", REMEDY)
    return image["stage"], image


def batch_row(
    condition: str,
    images: np.ndarray,
    predicted: np.ndarray,
    correct: np.ndarray,
    first_wrong: np.ndarray | None = None,
) -> Row:
    """One line for a whole batch: 50,000 images under 95 conditions are read again in seconds."""
    values = {
        "images": images.astype("<i4"), "predicted": predicted.astype("<i2"), "correct": np.packbits(correct)
    }  # fmt: skip
    if first_wrong is not None:
        values["first_wrong"] = first_wrong.astype("<i4")
    return {"stage": condition, **{key: base64.b64encode(value.tobytes()).decode() for key, value in values.items()}}


def _answers(row: Row) -> Answers:
    kinds = {"images": "<i4", "predicted": "<i2", "correct": "u1", "first_wrong": "<i4"}
    known = {key: kind for key, kind in kinds.items() if key in row}
    values = {key: np.frombuffer(base64.b64decode(row[key], validate=True), kind) for key, kind in known.items()}
    images, bits = values["images"], values.pop("correct")
    if any(len(value) != len(images) for value in values.values()) or len(bits) != -(-len(images) // 8):
        raise ValueError("unequal lengths")
    if len(images) and images.min() < 0:
        raise ValueError("an image has a number from 0 on")
    correct = np.unpackbits(bits, count=len(images)).astype(bool)
    first_wrong = values.get("first_wrong", np.where(correct, -1, 0))
    if np.any(first_wrong < -1) or np.any((first_wrong < 0) != correct):
        raise ValueError("first_wrong contradicts correct")
    of_images = (images, values["predicted"], first_wrong)
    numbers, predicted, first_wrong = (value.astype(np.int64) for value in of_images)
    return Answers(numbers, predicted, correct, first_wrong)

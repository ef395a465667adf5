"""Clean image, change and adversarial image as data URIs, as many as a page may weigh."""

import base64
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

from robustvit.core.examples import magnified_change
from robustvit.reporting.read import Evaluation
from robustvit.reporting.tables import Group, Line

LARGEST_SIDE = 160
"""Pixels; the page shows them no larger."""
PIXELATED_BELOW = 96
"""Images with shorter sides are enlarged pixel by pixel, as smoothing would hide what the attack did."""
BUDGET = 3_000_000
"""Characters of all pictures of a page, which may be sent by mail."""


@dataclass(frozen=True)
class Picture:
    index: int
    label: str
    predicted: str
    """Classes by name where the data has names."""
    confidence_clean: float
    confidence_adversarial: float
    clean: str
    change: str
    adversarial: str
    magnified: float
    is_small: bool


@dataclass(frozen=True)
class Gallery:
    line: Line
    pictures: tuple[Picture, ...]
    is_open: bool
    """The first of each run; the others wait to be asked for."""


class Budget:
    """What all pictures of a page may take together."""

    def __init__(self, characters: int = BUDGET) -> None:
        self.left = characters

    def spend(self, characters: int) -> bool:
        """Whether so much was left; if not, nothing is spent."""
        if characters > self.left:
            return False
        self.left -= characters
        return True


def in_turn(groups: Sequence[Group]) -> tuple[list[Line], list[Line]]:
    """Evaluations with examples in the order of the groups: the first of every run, and the others."""
    lines = [line for group in groups for line in group.lines if line.evaluation.examples is not None]
    first = {line.run_number: line for line in reversed(lines)}
    opened = [line for line in lines if line is first[line.run_number]]
    return opened, [line for line in lines if line is not first[line.run_number]]


def galleries(lines: Sequence[Line], budget: Budget, is_open: bool) -> list[Gallery]:
    """As many as the budget has room for."""
    made = []
    for line in lines:
        shown = tuple(pictures(line.evaluation))
        if not budget.spend(sum(len(one.clean) + len(one.change) + len(one.adversarial) for one in shown)):
            break
        made.append(Gallery(line, shown, is_open))
    return made


def pictures(evaluation: Evaluation) -> Iterator[Picture]:
    """The examples kept."""
    kept = evaluation.examples
    if kept is None:
        return
    for row in range(len(kept.index)):
        pair = (kept.clean[row], kept.adversarial[row])
        clean, adversarial = (np.nan_to_num(image.astype(np.float32)) for image in pair)
        change, magnified = magnified_change(clean, adversarial, evaluation.threat.norm, evaluation.threat.eps)
        is_small = min(clean.shape[1:]) < PIXELATED_BELOW
        yield Picture(
            index=int(kept.index[row]),
            label=_class(kept.label[row], evaluation),
            predicted=_class(kept.predicted[row], evaluation),
            confidence_clean=float(kept.confidence_clean[row]),
            confidence_adversarial=float(kept.confidence_adversarial[row]),
            clean=data_uri(clean, is_small),
            change=data_uri(change, is_small, Image.Resampling.NEAREST),  # a mean would be gray
            adversarial=data_uri(adversarial, is_small),
            magnified=magnified,
            is_small=is_small,
        )


def _class(number: np.integer, evaluation: Evaluation) -> str:
    names = evaluation.result.provenance.class_names
    return names[number] if 0 <= number < len(names) else str(int(number))


def data_uri(image: np.ndarray, is_small: bool, shrinking: Image.Resampling = Image.Resampling.BICUBIC) -> str:
    """A (3, H, W) image in [0, 1], exact if it is small."""
    levels = np.round(image.clip(0, 1) * 255).astype(np.uint8).transpose(1, 2, 0)
    picture = Image.fromarray(levels)
    picture.thumbnail((LARGEST_SIDE, LARGEST_SIDE), shrinking)
    kind, options = ("png", {"optimize": True}) if is_small else ("jpeg", {"quality": 90, "subsampling": 0})
    buffer = io.BytesIO()
    picture.save(buffer, format=kind, **options)
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"

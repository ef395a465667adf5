"""What is known so far of each image in each stage or condition: in memory, and in journals if there is a folder."""

import base64
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from robustvit.core.errors import UserError
from robustvit.core.journal import Journal, Row, read_checked, repair_checked
from robustvit.core.progress import say
from robustvit.core.result import ResultWarning

Outcome = Literal["correct", "wrong", "fooled", "survived", "unverified"]
Order = Literal["ranked", "nearest"]
"""Of classes as targets: by the clean logits, or by how near their boundaries look."""
_OUTCOMES = frozenset(get_args(Outcome))
CLEAN = "clean"
"""The stage of the unchanged images."""


class Answers(NamedTuple):
    """What the model said under a condition, by image."""

    images: np.ndarray
    predicted: np.ndarray
    correct: np.ndarray


class Ledger:
    """One row per (stage, image), or per (condition, batch): on disk before it counts.

    In memory is only what later stages and the result need. Every process writes a file of its own and reads all.
    """

    def __init__(self, folder: Path | None = None, writer: int = 0) -> None:
        self._outcomes: dict[str, dict[int, Outcome]] = defaultdict(dict)
        self._totals: dict[tuple[str, str], float] = defaultdict(float)
        self._ranked: dict[str, dict[int, bytes]] = {"ranked": {}, "nearest": {}}
        self._predicted: dict[int, int] = {}
        self._answers: dict[str, list[Answers]] = defaultdict(list)
        self._warnings: dict[ResultWarning, None] = {}
        self._count = 0
        self._kept: list[Row] = []
        """The rows themselves, where there are no files."""
        self._folder = folder
        self._journal = None if folder is None else Journal(folder / f"ledger-{writer}.jsonl")
        self._read_to: dict[Path, int] = {}
        self._read(self._files())

    @staticmethod
    def repair(folder: Path) -> None:
        """Before anybody writes: torn lines are cut; damaged rows are named and taken out, to be computed again."""
        for path in sorted(folder.glob("ledger-*.jsonl")):
            damaged = repair_checked(path)
            if damaged:
                lines = ", ".join(map(str, damaged[:8])) + (" ..." if len(damaged) > 8 else "")
                say(f"{path}: {len(damaged)} damaged rows (lines {lines}) were removed; they are computed again")

    def refresh(self) -> None:
        """Read what other processes have written since."""
        self._read([path for path in self._files() if self._journal is None or path != self._journal.path])

    def _files(self) -> list[Path]:
        return [] if self._folder is None else sorted(self._folder.glob("ledger-*.jsonl"))

    def _read(self, paths: Iterable[Path]) -> None:
        for path in paths:
            checked = read_checked(path, self._read_to.get(path, 0))
            self._read_to[path] = checked.end
            self._remember(checked.rows, path)

    def __len__(self) -> int:
        """Rows read and written so far."""
        return self._count

    def record(self, rows: Sequence[Row]) -> None:
        if self._journal is not None:
            self._journal.append(rows, checked=True)
        else:
            self._kept += rows
        self._remember(rows, None)

    def record_answers(self, condition: str, images: np.ndarray, predicted: np.ndarray, correct: np.ndarray) -> None:
        """One line for a whole batch: 50,000 images under 95 conditions are read again in seconds."""
        row = {
            "stage": condition,
            "images": _encoded(images, "<i4"),
            "predicted": _encoded(predicted, "<i2"),
            "correct": base64.b64encode(np.packbits(correct).tobytes()).decode(),
        }
        self.record([row])

    def warn(self, warning: ResultWarning) -> None:
        """Kept with the rows, so that it reaches the result from whichever process noticed it, also after a resume."""
        if warning not in self._warnings:
            self.record([{"warning": asdict(warning)}])

    @property
    def warnings(self) -> tuple[ResultWarning, ...]:
        return tuple(self._warnings)

    def outcome(self, stage: str, image: int) -> Outcome | None:
        return self._outcomes[stage].get(image)

    def survivors(self, stages: Iterable[str], images: Iterable[int]) -> list[int] | None:
        """Which images these stages left robust, one after the other; None where a row is missing."""
        left = list(images)
        for stage in stages:
            outcomes = [self.outcome(stage, image) for image in left]
            if None in outcomes:
                return None
            left = [i for i, outcome in zip(left, outcomes, strict=True) if outcome not in ("wrong", "fooled")]
        return left

    def rows_of(self, stages: Iterable[str]) -> list[Row]:
        """All rows of these stages, as they were recorded."""
        wanted, files = set(stages), self._files()
        rows = [row for path in files for row in read_checked(path).rows] if files else self._kept
        return [row for row in rows if row.get("stage") in wanted]

    def predicted(self, image: int) -> int:
        """The class of the clean image; -1 where its logits weren't finite."""
        return self._predicted[image]

    def answers(self, condition: str) -> Answers:
        """Each image once, in their order."""
        parts = self._answers[condition]
        if not parts:
            return Answers(*(np.zeros(0, kind) for kind in (np.int64, np.int64, bool)))
        images, predicted, correct = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        unique, first = np.unique(images, return_index=True)
        return Answers(unique, predicted[first], correct[first])

    def ranked(self, image: int, rank: int, order: Order = "ranked") -> int | None:
        """The class of this rank, by the clean logits (1 is the predicted one) or by nearness (2 is the nearest)."""
        classes = self._ranked[order].get(image)
        first = 1 if order == "ranked" else 2
        at = 4 * (rank - first)
        return None if classes is None else int.from_bytes(classes[at : at + 4], "little")

    def total(self, stage: str, key: str) -> float:
        """Seconds, passes, or images whose logits weren't finite, summed over a stage."""
        return self._totals[stage, key]

    def _remember(self, rows: Iterable[Row], path: Path | None) -> None:
        for row in rows:
            self._count += 1
            try:
                if "warning" in row:
                    self._warnings[ResultWarning(**row["warning"])] = None
                elif "images" in row:
                    self._remember_answers(row)
                else:
                    self._remember_image(row)
            except (KeyError, TypeError, ValueError):
                raise UserError(f"{path}: not a row of a ledger: {str(row)[:200]}; remove the folder") from None

    def _remember_answers(self, row: Row) -> None:
        images, predicted = _decoded(row["images"], "<i4"), _decoded(row["predicted"], "<i2")
        bits = np.frombuffer(base64.b64decode(row["correct"]), np.uint8)
        correct = np.unpackbits(bits, count=len(images)).astype(bool)
        if len(predicted) != len(images):
            raise ValueError("unequal lengths")
        self._answers[row["stage"]].append(Answers(images, predicted, correct))

    def _remember_image(self, row: Row) -> None:
        stage, image, outcome = row["stage"], row["image"], row["outcome"]
        if image in self._outcomes[stage]:
            return
        if type(image) is not int or outcome not in _OUTCOMES:
            raise ValueError(outcome)
        self._outcomes[stage][image] = outcome
        for key in ("seconds", "passes"):
            self._totals[stage, key] += _number(row.get(key))
        self._totals[stage, "not finite"] += row.get("margin") is None
        if stage == CLEAN:
            self._predicted[image] = row["predicted"]
        for order, known in self._ranked.items():
            if order in row:
                known[image] = b"".join(int(k).to_bytes(4, "little") for k in row[order])


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def _encoded(values: np.ndarray, kind: str) -> str:
    return base64.b64encode(values.astype(kind).tobytes()).decode()


def _decoded(text: str, kind: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), kind).astype(np.int64)

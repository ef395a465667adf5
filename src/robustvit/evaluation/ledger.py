"""What is known so far of each image in each stage: in memory, and in a journal if the evaluation has a folder."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from robustvit.core.errors import UserError
from robustvit.core.files import Journal, Row, each_row

Outcome = Literal["correct", "wrong", "fooled", "survived", "unverified"]
Order = Literal["ranked", "nearest"]
"""Of classes as targets: by the clean logits, or by how near their boundaries look."""


class Ledger:
    """One row per (stage, image), on disk before it counts; in memory only what later stages and the result need."""

    def __init__(self, folder: Path | None = None, writer: int = 0) -> None:
        self._outcomes: dict[str, dict[int, Outcome]] = defaultdict(dict)
        self._totals: dict[tuple[str, str], float] = defaultdict(float)
        self._ranked: dict[str, dict[int, bytes]] = {"ranked": {}, "nearest": {}}
        self._journal: Journal | None = None
        if folder is not None:
            self._journal = Journal(folder / f"ledger-{writer}.jsonl")
            for path in sorted({*folder.glob("ledger-*.jsonl"), self._journal.path}):
                count = self._remember(each_row(path), path)
                if path == self._journal.path:
                    self._journal.cut_torn_line(count)

    def record(self, rows: Sequence[Row]) -> None:
        if self._journal is not None:
            self._journal.append(rows)
        self._remember(rows, None)

    def outcome(self, stage: str, image: int) -> Outcome | None:
        return self._outcomes[stage].get(image)

    def ranked(self, image: int, rank: int, order: Order = "ranked") -> int | None:
        """The class of this rank, by the clean logits (1 is the predicted one) or by nearness (2 is the nearest)."""
        classes = self._ranked[order].get(image)
        first = 1 if order == "ranked" else 2
        at = 4 * (rank - first)
        return None if classes is None else int.from_bytes(classes[at : at + 4], "little")

    def total(self, stage: str, key: str) -> float:
        """Seconds, passes, or images whose logits weren't finite, summed over a stage."""
        return self._totals[stage, key]

    def _remember(self, rows: Iterable[Row], path: Path | None) -> int:
        """How many rows there were."""
        count = 0
        for count, row in enumerate(rows, start=1):  # noqa: B007
            try:
                stage, image, outcome = row["stage"], row["image"], row["outcome"]
            except (KeyError, TypeError):
                raise UserError(f"{path}: a row without stage, image and outcome: {row}") from None
            if image in self._outcomes[stage]:
                continue
            self._outcomes[stage][image] = outcome
            for key in ("seconds", "passes"):
                self._totals[stage, key] += _number(row.get(key))
            self._totals[stage, "not finite"] += row.get("margin") is None
            for order, known in self._ranked.items():
                if order in row:
                    known[image] = b"".join(int(k).to_bytes(4, "little") for k in row[order])
        return count


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else 0.0

"""What is known so far of each image in each stage: in memory, and in a journal if the evaluation has a folder."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from robustvit.core.errors import UserError
from robustvit.core.files import Journal, Row, read_rows

Outcome = Literal["correct", "wrong", "fooled", "survived", "unverified"]


class Ledger:
    """One row per (stage, image); rows are on disk before they count."""

    def __init__(self, folder: Path | None = None, writer: int = 0) -> None:
        self._rows: dict[tuple[str, int], Row] = {}
        self._journal: Journal | None = None
        if folder is not None:
            self._journal = Journal(folder / f"ledger-{writer}.jsonl")
            self._journal.repair()
            for path in sorted(folder.glob("ledger-*.jsonl")):
                self._remember(read_rows(path), path)

    def record(self, rows: Sequence[Row]) -> None:
        if self._journal is not None:
            self._journal.append(rows)
        self._remember(rows, None)

    def outcome(self, stage: str, image: int) -> Outcome | None:
        row = self._rows.get((stage, image))
        return row["outcome"] if row else None

    def row(self, stage: str, image: int) -> Row:
        return self._rows[stage, image]

    def rows(self, stage: str) -> list[Row]:
        return [row for (name, _), row in self._rows.items() if name == stage]

    def _remember(self, rows: Sequence[Row], path: Path | None) -> None:
        for row in rows:
            try:
                self._rows.setdefault((row["stage"], row["image"]), row)
            except (KeyError, TypeError):
                raise UserError(f"{path}: a row without stage and image: {row}") from None


def total(rows: Sequence[Row], key: str) -> float:
    return float(sum(_number(row.get(key)) for row in rows))


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else 0.0

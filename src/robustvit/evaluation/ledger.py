"""What is known so far of each image in each stage or condition: in memory, and in journals if there is a folder."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from robustvit.core.errors import UserError, shortened
from robustvit.core.journal import Journal, Row, read_checked, repair_checked
from robustvit.core.progress import say
from robustvit.core.readers import unreadable
from robustvit.core.result import ResultWarning
from robustvit.core.world import World
from robustvit.evaluation.ledger_rows import (
    CLEAN as CLEAN,
    REMEDY,
    Answers as Answers,
    ImageRow,
    Order as Order,
    Outcome as Outcome,
    batch_row,
    parse_row,
)


class Ledger:
    """One row per (stage, image), or per (condition, batch): on disk before it counts.

    In memory is only what later stages and the result need. Every process writes a file of its own and reads all;
    `exchanges`: those that it can't read, of machines with a folder of their own, are exchanged.
    """

    def __init__(self, folder: Path | None = None, writer: int = 0, exchanges: bool = False) -> None:
        self._outcomes: dict[str, dict[int, Outcome]] = defaultdict(dict)
        self._totals: dict[tuple[str, str], float] = defaultdict(float)
        self._ranked: dict[str, dict[int, bytes]] = {"ranked": {}, "nearest": {}}
        self._predicted: dict[int, int] = {}
        self._answers: dict[str, list[Answers]] = defaultdict(list)
        self._warnings: dict[ResultWarning, None] = {}
        self._count = 0
        self._kept: list[Row] = []
        """The rows themselves, where other processes can't read the files, or there are none."""
        self._keeps = exchanges or folder is None
        self._exchanged = 0
        """How many of them every process knows."""
        self._folder = folder
        self._journal = None if folder is None else Journal(folder / f"ledger-{writer}.jsonl")
        self._read_to: dict[Path, int] = {}
        self._lines: dict[Path, int] = defaultdict(int)
        self._read(self._files())

    @staticmethod
    def repair(folder: Path) -> None:
        """Before anybody writes: torn lines are cut; damaged rows are named and taken out, to be computed again."""
        for path in sorted(folder.glob("ledger-*.jsonl")):
            damaged = repair_checked(path)
            if damaged:
                lines = ", ".join(map(str, damaged[:8])) + (" ..." if len(damaged) > 8 else "")
                rows = f"{len(damaged)} rows, damaged or of another evaluation (lines {lines}),"
                say(f"{path}: {rows} were removed; they are computed again")

    def refresh(self) -> None:
        """Read what other processes have written since."""
        self._read([path for path in self._files() if self._journal is None or path != self._journal.path])

    def exchange(self, world: World) -> None:
        """The rows of the other processes, where they can't be read; only the first one writes them to its folder."""
        everyone = world.gather(self._kept[self._exchanged :])
        for rank, rows in enumerate(everyone):
            if rank != world.rank:
                self.adopt(rows, "ledger of another process", writes=world.is_first or self._journal is None)
        self._exchanged = len(self._kept)

    def adopt(self, rows: Sequence[Row], place: str, writes: bool = True) -> int:
        """Rows of another ledger of the same evaluation that this one lacks; how many these were."""
        count = 0
        for row in rows:
            if self._knows(row, place):
                continue
            count += 1
            if writes:
                self.record([row])
            else:
                self._remember(row, place)
        return count

    def _knows(self, row: Row, place: str) -> bool:
        stage, said = parse_row(row, place)
        if isinstance(said, ResultWarning):
            return said in self._warnings
        if isinstance(said, Answers):
            return bool(np.isin(said.images, self.answers(stage).images).all())
        if self.outcome(stage, said["image"]) is None:
            return False
        self._remember_image(said, place)  # refuses another outcome
        return True

    def _files(self) -> list[Path]:
        return [] if self._folder is None else sorted(self._folder.glob("ledger-*.jsonl"))

    def _read(self, paths: Iterable[Path]) -> None:
        for path in paths:
            checked = read_checked(path, self._read_to.get(path, 0))
            self._read_to[path] = checked.end
            for row in checked.rows:
                self._lines[path] += 1
                if self._keeps:
                    self._kept.append(row)
                self._remember(row, f"{path}, line {self._lines[path]}")

    def check(self, stages: Mapping[str, np.ndarray]) -> None:
        """Refuse rows of other stages or conditions than these, or of other images."""
        known = {stage: set(outcomes) for stage, outcomes in self._outcomes.items() if outcomes}
        for condition in self._answers:
            known[condition] = set(self.answers(condition).images.tolist())
        for stage, images in known.items():
            if stage not in stages:
                raise self._stray(stage, None, "a stage that this evaluation doesn't have")
            if others := images.difference(stages[stage].tolist()):
                raise self._stray(stage, min(others), f"image {min(others)}, which doesn't meet it")

    def _stray(self, stage: str, image: int | None, problem: str) -> UserError:
        """Name the last row of this stage and image."""
        place = "ledger"
        for path in self._files():
            for number, row in enumerate(read_checked(path).rows, start=1):
                of, said = parse_row(row, path)
                images = said.images.tolist() if isinstance(said, Answers) else [row.get("image")]
                if of == stage and (image is None or image in images):
                    place = f"{path}, line {number}"
        return unreadable(place, f"a row of '{shortened(stage, 60)}', {problem}", REMEDY)

    def __len__(self) -> int:
        """Rows read and written so far."""
        return self._count

    def record(self, rows: Sequence[Row]) -> None:
        if self._journal is not None:
            self._journal.append(rows, checked=True)
        if self._keeps:
            self._kept += rows
        for row in rows:
            self._remember(row, "ledger")

    def record_answers(
        self,
        condition: str,
        images: np.ndarray,
        predicted: np.ndarray,
        correct: np.ndarray,
        first_wrong: np.ndarray | None = None,
    ) -> None:
        """One line for a whole batch."""
        self.record([batch_row(condition, images, predicted, correct, first_wrong)])

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
            return Answers(*(np.zeros(0, kind) for kind in (np.int64, np.int64, bool, np.int64)))
        images, *values = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        unique, first, back = np.unique(images, return_index=True, return_inverse=True)
        twice = images[np.any([value != value[first][back] for value in values], axis=0)]
        if len(twice):
            raise self._stray(condition, int(twice[0]), f"image {twice[0]}, that another row contradicts")
        return Answers(unique, *(value[first] for value in values))

    def ranked(self, image: int, rank: int, order: Order = "ranked") -> int | None:
        """The class of this rank, by the clean logits (1 is the predicted one) or by nearness (2 is the nearest)."""
        classes = self._ranked[order].get(image)
        first = 1 if order == "ranked" else 2
        at = 4 * (rank - first)
        if classes is not None and at + 4 > len(classes):
            raise UserError(f"{self._folder}: its ledger lacks the class of rank {rank} for image {image}; remove it")
        return None if classes is None else int.from_bytes(classes[at : at + 4], "little")

    def total(self, stage: str, key: str) -> float:
        """Seconds, passes, or images whose logits weren't finite, summed over a stage."""
        return self._totals[stage, key]

    def _remember(self, row: Row, place: str) -> None:
        self._count += 1
        stage, said = parse_row(row, place)
        if isinstance(said, ResultWarning):
            self._warnings[said] = None
        elif isinstance(said, Answers):
            self._answers[stage].append(said)
        else:
            self._remember_image(said, place)

    def _remember_image(self, row: ImageRow, place: str) -> None:
        stage, image, outcome = row["stage"], row["image"], row["outcome"]
        known = self._outcomes[stage].get(image)
        if known not in (None, outcome):
            problem = f"image {image} is {outcome} in '{shortened(stage, 60)}', and {known} in a row before"
            raise unreadable(place, problem, "remove one of the two lines, or both to have them computed again")
        if known is not None:
            return
        self._outcomes[stage][image] = outcome
        self._totals[stage, "seconds"] += row.get("seconds", 0.0)
        self._totals[stage, "passes"] += row.get("passes", 0.0)
        self._totals[stage, "not finite"] += row.get("margin") is None
        if stage == CLEAN:
            self._predicted[image] = row["predicted"]
        if "ranked" in row:
            self._ranked["ranked"][image] = _packed(row["ranked"])
        if "nearest" in row:
            self._ranked["nearest"][image] = _packed(row["nearest"])


def _packed(classes: Sequence[int]) -> bytes:
    return b"".join(number.to_bytes(4, "little") for number in classes)

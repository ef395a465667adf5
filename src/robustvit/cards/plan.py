"""What a card will compute: the rows of a preset for each model, with their cost."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from robustvit.attacks.base import Classifier
from robustvit.cards.preset import PresetRow
from robustvit.core.measure import Kind
from robustvit.core.progress import format_seconds
from robustvit.core.result import ResultWarning
from robustvit.core.summary import aligned
from robustvit.data.base import Split
from robustvit.evaluation.cost import Estimate
from robustvit.evaluation.evaluator import Evaluator, measure_kinds
from robustvit.evaluation.subject import Subject
from robustvit.threats import LpBall

HOW = " (attacks end early on images that they fool; times are by a batch, and an image under each change)"


@dataclass(frozen=True)
class Candidate:
    """A model with what its run says of it."""

    name: str
    source: str
    model: Classifier
    data: Any
    folder: Path
    """Where its results are kept."""
    threat: LpBall | None = None
    recipe: str = ""
    checkpoint: dict[str, Any] = field(default_factory=dict)
    warnings: tuple[ResultWarning, ...] = ()
    key: str = ""
    """Of its weights: the same for a model that is named in two ways."""


@dataclass(frozen=True)
class Options:
    """How the rows are evaluated."""

    paths: Mapping[str, Path] = field(default_factory=dict)
    """By suite, where images that it brings itself are."""
    images: int | None = None
    """At most so many in each row."""
    split: Split = "test"
    seed: int = 0
    batch_size: int | None = None
    device: str = "auto"
    processes: int | None = 1
    quiet: bool = False
    threat: LpBall | None = None
    """Given for rows that follow the run's, where one must."""


@dataclass(frozen=True, eq=False)
class PlannedRow:
    """A row of one model."""

    candidate: Candidate
    row: PresetRow
    title: str = ""
    """Of the suite, with the threat."""
    subject: Subject | None = None
    evaluator: Evaluator | None = None
    work: Estimate | None = None
    data_sha256: str = ""
    is_done: bool = False
    missing: str = ""
    """Why it can't be computed."""

    @property
    def num_images(self) -> int:
        return 0 if self.subject is None else len(self.subject.indices)


@dataclass(frozen=True, eq=False)
class CardPlan:
    """The rows of all models."""

    preset: str
    about: str
    candidates: tuple[Candidate, ...]
    rows: tuple[PlannedRow, ...]
    options: Options

    @property
    def todo(self) -> list[PlannedRow]:
        return [one for one in self.rows if not one.missing and not one.is_done]

    def missing(self, line: str) -> str:
        """Why a number won't be on the card; empty where it will."""
        rows = [one for one in self.rows if line in one.row.lines]
        if not rows:
            return "the preset has no such row for images of this size"
        return next((one.missing for one in rows if one.missing), "")

    def kind(self, line: str) -> Kind | None:
        """Of a number, where that is known before it is computed."""
        found = next(one for one in self.rows if line in one.row.lines)
        known = None if found.evaluator is None else measure_kinds(found.evaluator)
        return None if known is None else known.get(found.row.lines[line])

    def text(self) -> str:
        """Rows, images, passes and time, a line each."""
        several = len(self.candidates) > 1
        cells = [("model", "row", "images", "passes", "time", "evaluation"), *map(_cells, self.rows)]
        cells = [row if several else row[1:] for row in cells]
        lines = aligned(cells, texts={0, len(cells[0]) - 1} | ({1} if several else set()))
        return "\n".join([self._headline(), *(f"  {line}" for line in lines)])

    def _headline(self) -> str:
        todo, names = self.todo, ", ".join(candidate.name for candidate in self.candidates)
        known = [one.work for one in todo if one.work is not None]
        bound = "at most " if len(known) == len(todo) else ""
        passes, seconds = sum(work.passes for work in known), sum(work.seconds for work in known)
        work = f"{bound}{passes:,} passes, about {format_seconds(seconds)}" if todo else "nothing to compute"
        what = f"card '{self.preset}' of {names}: {len(todo)} of {len(self.rows)} rows to compute, {work}"
        return f"{what}{HOW if todo else ''}"


def _cells(planned: PlannedRow) -> tuple[str, ...]:
    head = (planned.candidate.name, planned.row.name)
    if planned.missing:
        return (*head, "-", "-", "-", f"missing: {planned.missing}")
    images = f"{planned.num_images:,}"
    if planned.is_done:
        return (*head, images, "0", "done", planned.title)
    work = planned.work
    cost = ("?", "?") if work is None else (f"{work.passes:,}", format_seconds(work.seconds))
    return (*head, images, *cost, planned.title)

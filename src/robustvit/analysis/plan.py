"""What a call of `analyze` will do: each analysis of each case, with its cost."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from robustvit.analysis.base import Case
from robustvit.core.component import to_dict
from robustvit.core.errors import UserError
from robustvit.core.files import is_file
from robustvit.core.finding import FILE
from robustvit.core.progress import format_seconds
from robustvit.core.summary import aligned
from robustvit.core.world import World
from robustvit.evaluation.cost import seconds_of_a_pass
from robustvit.evaluation.store import Store


@dataclass(frozen=True, eq=False)
class Planned:
    """One analysis of one case, or the attack that makes the images of a case."""

    name: str
    case: Case
    passes: int | None = None
    """At most; None where it is unknown."""
    seconds: float | None = None
    is_done: bool = False
    refused: str = ""

    def cells(self, has_models: bool) -> tuple[str, ...]:
        head = (self.name, *((self.case.model,) if has_models else ()), self.case.on)
        images = f"{len(self.case.subject.indices):,}"
        if self.is_done:
            return (*head, images, "0", "done")
        passes = "?" if self.passes is None else f"{self.passes:,}"
        return (*head, images, passes, "?" if self.seconds is None else format_seconds(self.seconds))


@dataclass(frozen=True, eq=False)
class AnalysisPlan:
    rows: tuple[Planned, ...]

    def text(self) -> str:
        todo = [row for row in self.rows if not (row.is_done or row.refused)]
        known = [row.seconds for row in todo if row.seconds is not None]
        bound = "at most " if len(known) == len(todo) else "more than "
        work = f"{bound}{format_seconds(sum(known))}, by a timed batch" if todo else "nothing to compute"
        has_models = any(row.case.model for row in self.rows)
        header = ("analysis", *(("model",) if has_models else ()), "on", "images", "passes", "time")
        made = [row for row in self.rows if not row.refused]
        texts = range(len(header) - 3)
        lines = aligned([header, *(row.cells(has_models) for row in made)], texts) if made else []
        begin = f"{len(todo)} of {len(made)} to compute: {work}"
        return "\n".join([begin, *(f"  {line}" for line in lines), *self._left_out()])

    def _left_out(self) -> Iterator[str]:
        """Each reason once, with the analyses and cases that it is about."""
        reasons: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
        for row in self.rows:
            if row.refused:
                words = (row.case.model, "" if row.refused.startswith("on ") else row.case.on)
                reasons[row.refused.removeprefix(f"{row.name}: ")][row.name].append(", ".join(filter(None, words)))
        cases = {(row.case.model, row.case.on) for row in self.rows}
        for reason, about in reasons.items():
            several = [of for of in about.values() if len(of) < len(cases)]
            where = sorted({case for of in several for case in of if case}) if len(cases) > 1 else []
            of = f" ({'; '.join(where)})" if where else ""
            yield f"  left out: {', '.join(about)}{of}: {reason}"


def store_of(analysis: Any, case: Case, root: Path | None) -> Store:
    """Where the finding of one case is kept."""
    return Store.open(root, analysis.name, case.identity(analysis, to_dict(analysis)), case.subject, World())


class Refusals:
    """Why some analyses can't be made of some cases; asked once, before anything is planned or computed."""

    def __init__(self, wanted: Sequence[Any], cases: Sequence[Case]) -> None:
        self._reasons = {(id(one), id(case)): case.refusal(one) for case in cases for one in wanted}
        self._wanted, self._cases = wanted, cases  # an id belongs to what is still there

    def of(self, analysis: Any, case: Case) -> str:
        """Empty where it can be made."""
        return self._reasons[id(analysis), id(case)]

    def check(self, is_all: bool) -> None:
        """What was asked for by name must be possible; of all, something must."""
        refused = [(one, case) for case in self._cases for one in self._wanted if self.of(one, case)]
        if refused and (not is_all or len(refused) == len(self._reasons)):
            analysis, case = refused[0]
            reason = self.of(analysis, case).removeprefix(f"{analysis.name}: ")
            raise UserError(": ".join(filter(None, (analysis.name, case.model, reason))))


def planned(wanted: Sequence[Any], cases: Sequence[Case], root: Path | None, refusals: Refusals) -> AnalysisPlan:
    """Before any work; what is stored already costs nothing."""
    rows = []
    for case in cases:
        seconds = seconds_of_a_pass(case.subject)
        of_case = [_planned(analysis, case, root, seconds, refusals.of(analysis, case)) for analysis in wanted]
        if case.attack is not None and not all(row.is_done or row.refused for row in of_case):
            rows.append(_row("adversarial images", case, case.attack.passes(), case.attack.is_done(root), seconds))
        rows += of_case
    return AnalysisPlan(tuple(rows))


def _planned(analysis: Any, case: Case, root: Path | None, seconds: float, refused: str) -> Planned:
    if refused:
        return Planned(analysis.name, case, refused=refused)
    folder = store_of(analysis, case, root).folder
    is_done = folder is not None and is_file(folder / FILE)
    passes = analysis.passes(case.planned) if hasattr(analysis, "passes") and not is_done else None
    return _row(analysis.name, case, passes, is_done, seconds)


def _row(name: str, case: Case, passes: int | None, is_done: bool, seconds: float) -> Planned:
    return Planned(name, case, passes, None if passes is None else passes * seconds, is_done)

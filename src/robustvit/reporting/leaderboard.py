"""A leaderboard of any number of runs on one page, with RobustBench's entries behind them; from files alone."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from robustvit.core.errors import UserError
from robustvit.core.numbers import counted, short_count
from robustvit.core.result import ResultWarning
from robustvit.core.summary import interval_text, value_text
from robustvit.reporting.advice import merged
from robustvit.reporting.entries import Entry, entries_of, published_entries
from robustvit.reporting.read import Evaluation
from robustvit.reporting.robustbench import (
    TEST_IMAGES,
    THREATS,
    Published,
    merged_entries,
    packaged,
    read_published,
    write_published,
)
from robustvit.reporting.standings import Pair, compared, places
from robustvit.reporting.template import rendered, script, write_page
from robustvit.reporting.trade_off import trade_off_chart

PAGE = "leaderboard.html"
MOST_PAIRS = 45
"""Of a family, that the page lists: those of ten models."""


@dataclass(frozen=True)
class Family:
    """Own results of the same suite and threat on the same images, in the order of their robust accuracy."""

    title: str
    members: tuple[Entry, ...]
    pairs: tuple[Pair, ...]
    places: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Leaderboard:
    """What `robustvit leaderboard` made."""

    page: Path
    entries: tuple[Entry, ...]
    families: tuple[Family, ...]
    exported: tuple[Path, ...] = ()
    not_exported: tuple[str, ...] = ()
    """Of each own result that can't be an entry of RobustBench, why."""

    def __repr__(self) -> str:
        return f"Leaderboard('{self.page}')"


def leaderboard(
    folders: Sequence[str | Path] | str | Path,
    out: str | Path = PAGE,
    *,
    published: Sequence[str | Path] = (),
    export: str | Path | None = None,
) -> Leaderboard:
    """Write one page about the attacked results in these folders; its links lead to their reports.

    `published` are further entries, as JSON files of RobustBench; `export` is a folder for files of the same form.
    """
    page = Path(out) / PAGE if Path(out).is_dir() else Path(out)
    own = entries_of([folders] if isinstance(folders, str | Path) else folders, page)
    known = packaged()
    every = merged_entries(known.entries, read_published(map(Path, published)))
    attacked = {(one.data, one.norm) for one in own}
    behind = sorted(published_entries(every, {one.data for one in own}), key=_order)
    behind.sort(key=lambda one: (one.data, one.norm) not in attacked)  # norms that were attacked here come first
    entries = (*sorted(own, key=_order), *behind)
    families = tuple(_families(own))
    charts = [
        (title, trade_off_chart(title, group), [one for one in group if one.differs])
        for title, group in _boards(entries)
    ]
    where = _places(families)
    filters = {"count": _count, "number": value_text, "interval": interval_text}
    text = rendered(
        "leaderboard.html", ("page.css", "leaderboard.css"), filters,
        entries=entries, charts=charts, families=families, most_pairs=MOST_PAIRS, source=known.source, date=known.date,
        place_of=[where.get(id(one), "") for one in entries], warnings=merged(_warnings(own)), given=len(published),
        published=len(behind), results=counted(len(own), "result"), **script("leaderboard.js"),
    )  # fmt: skip
    write_page(page, text)
    exported, refused = _exported(own, Path(export)) if export is not None else ([], [])
    return Leaderboard(page, entries, families, tuple(exported), tuple(refused))


def _order(one: Entry) -> tuple[str, str, float, float]:
    return one.data, one.norm or "~", one.eps or 0.0, -(one.robust.value if one.robust is not None else -1.0)


def _boards(entries: Sequence[Entry]) -> list[tuple[str, list[Entry]]]:
    """A chart for each data set and norm that was attacked here."""
    boards: dict[tuple[str, str], list[Entry]] = {}
    for one in entries:
        if one.is_here or (one.data, one.norm) in boards:
            boards.setdefault((one.data, one.norm), []).append(one)
    return [(f"{data}, L{norm}", group) for (data, norm), group in boards.items()]


def _evaluation(one: Entry) -> Evaluation:
    assert one.evaluation is not None, "own entries have one"
    return one.evaluation


def _families(own: Sequence[Entry]) -> list[Family]:
    groups: dict[object, dict[str, Entry]] = {}
    for one in own:
        evaluation = _evaluation(one)
        indices = evaluation.result.indices.tobytes()
        known = groups.setdefault((evaluation.family, one.eps, indices), {})
        before = known.get(evaluation.weights)  # of several results of one model, such as of other seeds, the worst
        if before is None or _evaluation(before).robust.value > evaluation.robust.value:
            known[evaluation.weights] = one
    families = []
    for group in groups.values():
        members = tuple(sorted(group.values(), key=lambda one: -_evaluation(one).robust.value))
        if len(members) > 1:
            pairs = compared([_evaluation(one).result for one in members])
            title = f"{members[0].suite}, {members[0].threat}, {members[0].data}, {members[0].images}"
            families.append(Family(title, members, tuple(pairs), tuple(places(len(members), pairs))))
    return families


def _places(families: Sequence[Family]) -> dict[int, str]:
    """`1 of 3`, or `1 to 2 of 3` where the order is chance, by the id of the entry."""
    texts = {}
    for family in families:
        for one, (first, last) in zip(family.members, family.places, strict=True):
            span = f"{first}" if first == last else f"{first} to {last}"
            texts[id(one)] = f"{span} of {len(family.members)}"
    return texts


def _warnings(own: Sequence[Entry]) -> list[tuple[ResultWarning, str]]:
    return [
        (warning, f"{one.name}, {one.suite}, {one.threat}")
        for one in own
        for warning in _evaluation(one).result.warnings
        if warning.inflates or _evaluation(one).result.is_doubtful
    ]


def _exported(own: Sequence[Entry], folder: Path) -> tuple[list[Path], list[str]]:
    """Files for what was judged by RobustBench's protocol, and why the others have none."""
    entries: list[Published] = []
    refused = []
    for one in own:
        if one.differs or one.data not in TEST_IMAGES or one.norm not in THREATS:
            why = ", ".join(one.differs) or f"RobustBench has no table of {one.data}, L{one.norm}"
            refused.append(f"{one.name}, {one.suite}, {one.threat}: {why}")
            continue
        result = _evaluation(one).result
        name = re.sub(r"[^\w.-]+", "_", one.name.removeprefix("zoo:")).strip("._")
        if any(name == entry.id for entry in entries):
            raise UserError(f"--export: two models would be written as {name}.json; name them apart")
        entries.append(
            Published(
                dataset=one.data, threat=THREATS[one.norm], id=name, name=one.name, venue="N/A",
                architecture=str(result.provenance.model.get("name", "")), eps=_evaluation(one).threat.eps_text,
                clean_acc=100 * result.clean_accuracy, autoattack_acc=100 * result.robust_accuracy,
            )
        )  # fmt: skip
    return write_published(folder, entries), refused


def _count(number: float | None) -> str:
    return "" if number is None else short_count(number)

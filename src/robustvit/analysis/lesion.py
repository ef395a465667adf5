"""What a network can do without: blocks, attention, MLPs or heads left out, one at a time or several at random.

Figures 8 and 34 of Understanding Robustness of Transformers for Image Classification (Bhojanapalli et al. 2021).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Annotated

import numpy as np
from pydantic import Field

from robustvit.analysis.base import network
from robustvit.analysis.checks import few_images, needing
from robustvit.core.component import component
from robustvit.core.errors import UserError
from robustvit.core.figures import Chart, Heatmap, Line, Table, percent
from robustvit.core.finding import Finding
from robustvit.core.numbers import Count, wilson_interval
from robustvit.core.streams import seeded_order
from robustvit.evaluation.condition import Condition
from robustvit.evaluation.conditions import Accuracy
from robustvit.evaluation.engine import Job, evaluate_subject
from robustvit.evaluation.ledger import CLEAN
from robustvit.evaluation.store import Store
from robustvit.evaluation.subject import Subject
from robustvit.models.attention_probe import network_name
from robustvit.models.layout import short_names
from robustvit.models.lesions import ATTENTION, BLOCK, MLP, Block, Lesion, check_removable, removable

WHOLE = Condition(CLEAN)


@component("analysis", "lesion")
class LesionStudy:
    """Accuracy without the attention, MLP or whole of each block, without n of them at random, without a head."""

    parts: Annotated[tuple[str, ...], Field(min_length=1)] = (ATTENTION, MLP, BLOCK)
    """What is left out of a block; also the name of a third part, such as local_mp of XCiT."""
    draws: Annotated[int, Field(ge=0)] = 25
    """Random choices for each number of blocks, or all choices where there are fewer; 0: none."""
    first_kept: Annotated[int, Field(ge=0)] = 1
    """So many blocks from the first on are never among those chosen at random."""
    counts: tuple[Count, ...] | None = None
    """How many are left out at random; null: every number."""
    heads: bool = False
    """Also each single head."""

    def check(self, subject: Subject) -> None:
        check_removable(self._blocks(subject), network_name(network(subject)))
        self._conditions(subject)

    def passes(self, subject: Subject) -> int:
        return len(subject.indices) * len(self._conditions(subject))

    def __call__(self, subject: Subject, store: Store) -> Finding:
        blocks = self._blocks(subject)
        plan = _Plan(self, blocks, subject.seed)
        result = evaluate_subject(
            subject, Accuracy(conditions=tuple(plan.conditions())), Job(run=store.folder, checks=False)
        )
        return _Shown(plan, result.num_images, {one.name: one.accuracy or 0.0 for one in result.conditions}).finding(
            f"{len(subject.indices)} images of {subject.images.title}."
        )

    def _blocks(self, subject: Subject) -> list[Block]:
        with needing("leaves out blocks, or their attention and MLP", "confusion and boundary take any model"):
            return removable(network(subject), few_images(subject))

    def _conditions(self, subject: Subject) -> list[Condition]:
        return list(_Plan(self, self._blocks(subject), subject.seed).conditions())


@dataclass(frozen=True)
class _Plan:
    """Which parts of which blocks are left out."""

    of: LesionStudy
    blocks: Sequence[Block]
    seed: int
    names: list[str] = field(init=False)

    def __post_init__(self) -> None:
        known = {kind for block in self.blocks for kind, _ in block.parts} | {BLOCK}
        unknown = next((kind for kind in self.of.parts if kind not in known | {ATTENTION, MLP}), None)
        if unknown is not None:
            raise UserError(f"lesion.parts: no block has a part '{unknown}'; known: {', '.join(sorted(known))}")
        object.__setattr__(self, "names", short_names([block.name for block in self.blocks]))
        if not self.kinds:
            wanted = " or ".join(self.of.parts)
            raise UserError(f"lesion.parts: no block has {wanted} to leave out; known: {', '.join(sorted(known))}")
        if self.of.heads and not self.heads():
            raise UserError("lesion.heads: no block has heads of attention")
        most = max(len([one for one in self.positions(kind) if one >= self.of.first_kept]) for kind in self.kinds)
        if self.of.counts and self.of.draws and max(self.of.counts) > most:
            raise UserError(f"lesion.counts: at most {most}, as so many can be left out at random")

    def positions(self, kind: str) -> list[int]:
        """Of the blocks that such a part can be left out of."""
        if kind == BLOCK:
            return [number for number, block in enumerate(self.blocks) if block.argument is not None]
        return [number for number, block in enumerate(self.blocks) if block.part(kind) is not None]

    @property
    def kinds(self) -> list[str]:
        return [kind for kind in self.of.parts if self.positions(kind)]

    def heads(self) -> list[tuple[int, int]]:
        wanted = [(number, head) for number, block in enumerate(self.blocks) for head in range(block.heads)]
        return wanted if self.of.heads else []

    def chosen(self, kind: str) -> dict[int, list[tuple[int, ...]]]:
        """By how many are left out, the choices of blocks."""
        free = [number for number in self.positions(kind) if number >= self.of.first_kept]
        counts = range(1, len(free) + 1) if self.of.counts is None else sorted(set(self.of.counts))
        return {
            count: _choices(free, count, self.of.draws, self.seed)
            for count in counts
            if self.of.draws and count <= len(free)
        }

    def conditions(self) -> Iterator[Condition]:
        """Each once: a single one may also be chosen at random."""
        yield WHOLE
        known = set()
        for kind in self.kinds:
            single = [(number,) for number in self.positions(kind)]
            for numbers in (*single, *(one for choices in self.chosen(kind).values() for one in choices)):
                if (kind, numbers) not in known:
                    known.add((kind, numbers))
                    yield Condition(without(kind, numbers), (kind,), around=self._lesion(kind, numbers))
        for number, head in self.heads():
            name = str(self.blocks[number].part(ATTENTION))
            yield Condition(without_head(number, head), ("head",), around=Lesion(heads=((name, head),)))

    def _lesion(self, kind: str, numbers: Sequence[int]) -> Lesion:
        blocks = [self.blocks[number] for number in numbers]
        if kind == BLOCK:
            return Lesion(blocks=tuple((block.name, block.argument or 0) for block in blocks))
        return Lesion(parts=tuple(str(block.part(kind)) for block in blocks))


def without(kind: str, numbers: Sequence[int]) -> str:
    return f"without {kind} {'+'.join(str(number + 1) for number in numbers)}"


def without_head(block: int, head: int) -> str:
    return f"without head {head + 1} of block {block + 1}"


def _choices(free: Sequence[int], count: int, draws: int, seed: int) -> list[tuple[int, ...]]:
    """All choices of so many, or as many at random as there are draws, which may repeat each other."""
    if math.comb(len(free), count) <= draws:
        return list(combinations(free, count))
    orders = (seeded_order(len(free), seed, "lesion", count, draw)[:count].tolist() for draw in range(draws))
    return [tuple(sorted(free[number] for number in order)) for order in orders]


@dataclass(frozen=True)
class _Shown:
    """From accuracies by condition to a finding."""

    plan: _Plan
    images: int
    accuracy: dict[str, float]

    def finding(self, images: str) -> Finding:
        at_random = [chart for chart in (self._by_count(),) if chart.lines]
        heads = self._heads()
        return Finding(
            "Lesions",
            f"Accuracy with parts of the network left out. {images} {self._what()}",
            tables=(self._table(),),
            charts=(self._by_position(), *at_random, *heads),
            arrays={f"at-random-{kind}": self._drawn(kind) for kind in self.plan.kinds if self.plan.chosen(kind)},
        )

    def _what(self) -> str:
        kept = [name for name, block in zip(self.plan.names, self.plan.blocks, strict=True) if block.argument is None]
        whole = [
            name
            for name, block in zip(self.plan.names, self.plan.blocks, strict=True)
            if block.argument is not None and not block.parts
        ]
        further = sorted({kind for block in self.plan.blocks for kind, _ in block.parts} - {ATTENTION, MLP})
        said = ["What is left out adds zeros to the residual path."]
        said += [f"Blocks that change the shape must stay: {', '.join(kept)}."] if kept else []
        if whole:
            said.append(f"Left out as a whole only, as their parts alone don't make them: blocks {', '.join(whole)}.")
        said += [f"Blocks have a further part ({', '.join(further)})."] if further else []
        return " ".join(said)

    def _interval(self, value: float) -> tuple[float, float]:
        return wilson_interval(round(value * self.images), self.images)

    def _by_position(self) -> Chart:
        whole = self.accuracy[CLEAN]
        lines = []
        for kind in self.plan.kinds:
            positions = self.plan.positions(kind)
            values = [self.accuracy[without(kind, (position,))] for position in positions]
            xs, ys = (0.0, *(position + 1.0 for position in positions)), (whole, *values)
            lines.append(Line(f"no {kind}", xs, ys, tuple(map(self._interval, ys))))
        note = "Bands are 95 % intervals over the choice of images."
        return Chart("Without one part", "block (0: whole network)", tuple(lines), in_percent=True, note=note)

    def _drawn(self, kind: str) -> np.ndarray:
        """(numbers, draws) accuracies; NaN where there are fewer choices."""
        chosen = self.plan.chosen(kind)
        found = np.full((len(chosen), max(map(len, chosen.values()))), np.nan)
        for row, choices in enumerate(chosen.values()):
            found[row, : len(choices)] = [self.accuracy[without(kind, one)] for one in choices]
        return found

    def _by_count(self) -> Chart:
        """Mean, standard error, minimum and maximum over the choices."""
        lines = []
        whole = self.accuracy[CLEAN]
        for kind in self.plan.kinds:
            counts = list(self.plan.chosen(kind))
            if not counts:
                continue
            values = [row[~np.isnan(row)] for row in self._drawn(kind)]
            means = [float(row.mean()) for row in values]
            errors = [float(row.std(ddof=1) / math.sqrt(len(row))) if len(row) > 1 else 0.0 for row in values]
            lines.append(
                Line(
                    f"no {kind}",
                    (0.0, *map(float, counts)),
                    (whole, *means),
                    ((whole, whole), *((m - e, m + e) for m, e in zip(means, errors, strict=True))),
                    ((whole, whole), *((float(row.min()), float(row.max())) for row in values)),
                )
            )
        first = self.plan.of.first_kept
        kept = "" if not first else "; the first block stays" if first == 1 else f"; the first {first} blocks stay"
        note = f"Mean over {self.plan.of.draws} random choices or all{kept}; standard error, smallest and largest."
        return Chart("Without several at random", "left out", tuple(lines), in_percent=True, note=note)

    def _heads(self) -> list[Heatmap]:
        heads = self.plan.heads()
        if not heads:
            return []
        rows = sorted({number for number, _ in heads})
        most = max(head for _, head in heads) + 1
        values = [[self.accuracy.get(without_head(number, head)) for head in range(most)] for number in rows]
        return [
            Heatmap(
                "Without one head",
                tuple(str(number + 1) for number in rows),
                tuple(str(head + 1) for head in range(most)),
                tuple(map(tuple, values)),
                row_title="block",
                column_title="head",
            )
        ]

    def _table(self) -> Table:
        rows = []
        for number, name in enumerate(self.plan.names):
            known = (self.accuracy.get(without(kind, (number,))) for kind in self.plan.kinds)
            cells = ("" if value is None else percent(value) for value in known)
            rows.append((f"{number + 1} ({name})", *cells))
        whole = percent(self.accuracy[CLEAN])
        rows.append(("whole network", *[whole] * len(self.plan.kinds)))
        return Table("Accuracy without one part", ("block", *(f"no {kind}" for kind in self.plan.kinds)), tuple(rows))

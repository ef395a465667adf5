"""How far the largest score before each softmax leads, and what floating point then leaves of the others.

Figure 2 of Towards Understanding and Improving Adversarial Robustness of Vision Transformers (Jain and Dutta 2024), and
the fractions that underflow, which the paper claims without counting them.
"""

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from robustvit.analysis.base import network
from robustvit.analysis.checks import check_probe, needing
from robustvit.analysis.streaming import State, accumulate
from robustvit.attacks.factors_file import GivenFactors, factors_for, read_factors
from robustvit.core.component import component
from robustvit.core.figures import Chart, Line, Table, percent
from robustvit.core.finding import Finding
from robustvit.evaluation.store import Store
from robustvit.evaluation.subject import Subject
from robustvit.models.attention_probe import SCALED_LOGITS, Scaling, ScoreObserver, attention_blocks, probing

BINS = np.linspace(-12, 6, 18 * 32 + 1)
"""Of gaps, as powers of ten; smaller and larger ones are counted at the ends."""
DRAWN = 4
"""Of them as one in the drawing."""
PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
UNDERFLOW = math.log10(103.97)
"""exp(-103.97) is the least that float32 can hold."""


@component("analysis", "attention_scores")
class AttentionScores:
    """Gaps between the largest and the second-largest score, and underflow in the softmax, block by block."""

    factors: GivenFactors | None = None
    """Also with attention scaled: one factor for all blocks, or the factors.json of an evaluation."""

    def contents(self, subject: Subject) -> dict[str, Any]:
        return {"factors": list(read_factors(self.factors)[0])} if isinstance(self.factors, Path) else {}

    def check(self, subject: Subject) -> None:
        self._cases(subject)

    def passes(self, subject: Subject) -> int:
        return len(subject.indices) * (1 if self.factors is None else 2)

    def __call__(self, subject: Subject, store: Store) -> Finding:
        cases, scaled_by = self._cases(subject)
        blocks = [name.removeprefix("backbone.") for name in attention_blocks(network(subject))]
        seen = {name: _Seen(len(blocks)) for name in cases}
        state: State = {f"{case}-{name}": a for case, counts in seen.items() for name, a in counts.arrays().items()}

        def add(step: tuple[str, Tensor]) -> int:
            case, part = step
            with torch.no_grad(), probing(network(subject), Scaling(cases[case]), ScoreObserver(seen[case].see)):
                subject.model(subject.batch(part)[0])
            return len(part)

        parts = torch.split(subject.indices, min(subject.batch_size, 64))
        steps = [(case, part) for case in cases for part in parts]
        total = len(cases) * len(subject.indices)
        accumulate(steps, state, add, store, "attention scores", total, subject.quiet)
        rows = []
        for number, name in enumerate(blocks):
            rows += [(f"{number + 1} {name}", case, *counts.row(number)) for case, counts in seen.items()]
        columns = ("block", "attention", "median gap", "99 % below", *(f"zero in {name}" for name in PRECISIONS))
        return Finding(
            "Scores before the softmax",
            f"{len(subject.indices)} images of {subject.images.title}{scaled_by}. A gap is the lead of the largest "
            "score of one image, head and query over the second-largest, among the pairs that no mask forbids. An "
            "entry of the softmax is zero where its exponential underflows; no gradient passes there.",
            tables=(Table("Gaps, and entries of the softmax that underflow", columns, tuple(rows)),),
            charts=tuple(_histogram(number, name, seen) for number, name in enumerate(blocks)),
            arrays={f"gaps-{case.replace(' ', '-')}": counts.gaps for case, counts in seen.items()} | {"powers": BINS},
        )

    def _cases(self, subject: Subject) -> tuple[dict[str, Tensor], str]:
        """The factors of each case and what the caption says of them; a UserError where scores can't be seen."""
        with needing("looks at the scores of attention before their softmax", SCALED_LOGITS):
            cases, scaled_by = {"as it is": torch.ones(len(attention_blocks(network(subject))))}, ""
        if self.factors is not None:
            cases["scaled"], scaled_by = factors_for(subject, self.factors)
        for factors in cases.values():
            check_probe(subject, Scaling(factors), ScoreObserver(lambda block, scores, masked: None))
        return cases, scaled_by


class _Seen:
    """What passed through the blocks: counted, as the gaps themselves would fill the memory."""

    def __init__(self, blocks: int) -> None:
        self.gaps = np.zeros((blocks, len(BINS) - 1), dtype=np.int64)
        self.zero = np.zeros((blocks, len(PRECISIONS)))
        self.count = np.zeros(blocks)

    def arrays(self) -> State:
        return {"gaps": self.gaps, "zero": self.zero, "count": self.count}

    def see(self, block: int, scores: Tensor, masked: Tensor) -> None:
        allowed = scores.float().masked_fill(masked, -torch.inf)
        if allowed.shape[-1] > 1:
            first, second = allowed.topk(2, dim=-1).values.unbind(-1)
            apart = (first - second)[torch.isfinite(first - second)]  # where but one pair is allowed there is no gap
            powers = apart.clamp_min(1e-30).log10().clamp(BINS[0], BINS[-1])
            self.gaps[block] += np.histogram(powers.cpu().numpy(), BINS)[0]
        # the exponential as a softmax takes it, of the distance to the largest
        exponentials = (allowed - allowed.amax(-1, keepdim=True)).exp()
        for number, precision in enumerate(PRECISIONS.values()):
            self.zero[block, number] += float(((exponentials.to(precision) == 0) & ~masked).sum())
        self.count[block] += float((~masked).sum())

    def row(self, block: int) -> list[str]:
        """The median gap, what 99 % lie below, and the fractions that underflow."""
        gaps = [self._below(block, fraction) for fraction in (0.5, 0.99)]
        return gaps + [percent(fraction) for fraction in self.zero[block] / self.count[block]]

    def _below(self, block: int, fraction: float) -> str:
        """By the bins, which are 7 % wide."""
        reached = self.gaps[block].cumsum()
        if reached[-1] == 0:
            return "-"
        at = int(np.searchsorted(reached, fraction * reached[-1]))
        before = reached[at - 1] if at else 0
        part = (fraction * reached[-1] - before) / max(self.gaps[block][at], 1)
        return f"{10 ** float(BINS[at] + part * (BINS[at + 1] - BINS[at])):.2g}"


def _histogram(number: int, name: str, seen: dict[str, _Seen]) -> Chart:
    known = [counts.gaps[number].reshape(-1, DRAWN).sum(1) for counts in seen.values()]
    edges = BINS[::DRAWN]
    used = np.flatnonzero(np.sum(known, axis=0))
    first, last = (max(used[0] - 1, 0), used[-1] + 2) if len(used) else (0, len(edges))
    middles = tuple(((edges[:-1] + edges[1:]) / 2)[first:last].tolist())
    fractions = [tuple((gaps[first:last] / max(gaps.sum(), 1)).tolist()) for gaps in known]
    lines = tuple(Line(case, middles, values) for case, values in zip(seen, fractions, strict=True))
    marks = ((UNDERFLOW, "float32 underflows"),)
    return Chart(f"Block {number + 1} ({name})", "gap, as a power of ten", lines, True, "histogram", marks=marks)

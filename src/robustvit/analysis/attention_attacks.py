"""The tables of Towards Understanding and Improving Adversarial Robustness of Vision Transformers (AAS, 2024).

Each cell is an evaluation of its own, judged on the model as it is unless the protocol is the paper's.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch

from robustvit.analysis.base import network
from robustvit.analysis.checks import check_gradient, check_probe, needing, required
from robustvit.attacks.factor_search import FactorSearch
from robustvit.attacks.hooks import passes_of
from robustvit.core.component import component
from robustvit.core.config import validated
from robustvit.core.figures import Chart, Table
from robustvit.core.finding import Finding, Row, compared
from robustvit.core.numbers import Count, Number, format_fraction
from robustvit.core.result import CLEAN_ACCURACY, ROBUST_ACCURACY, Measure, Result, accuracy_measure
from robustvit.evaluation.attacked import Attacked
from robustvit.evaluation.engine import Job, evaluate_subject
from robustvit.evaluation.store import Store
from robustvit.evaluation.subject import Subject
from robustvit.evaluation.suite import suite_from
from robustvit.models.attention_probe import SCALED_LOGITS, Scaling, attention_blocks
from robustvit.threats import LpBall

FACTORS = (10.0, 1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5)
"""The paper's set for all blocks."""
CRITERIA = ("squared", "literal", "unit", "ce", "cw", "gama")
What = Literal["attacks", "factors", "criteria", "iterations", "blocks", "eps"]
_ITERATED = re.compile(r"(pgd|cw|dlr|gama|mim)-\d+")


@component("analysis", "attention_attacks")
class AttentionAttacks:
    """Attacks plain, with one factor for all blocks, with searched and random ones (Tables 1 to 3, Figures 3 to 5)."""

    tables: tuple[What, ...] = ("attacks", "factors", "criteria")
    """Which of them are made."""
    attacks: tuple[str, ...] = ("fgsm", "pgd-20", "pgd-100", "cw-100", "dlr-100", "gama-100")
    """Suites of the rows of Table 3; the last of them chooses the factor for all blocks, as GAMA does in the paper."""
    attack: str = "pgd-100"
    """What the other tables attack with."""
    iterations: tuple[Count, ...] = (10, 50, 100, 200, 500, 1000)
    """Of `attack`, compared with each other."""
    eps: tuple[Number, ...] = tuple(size / 255 for size in (8, 16, 32, 64, 105))
    """For the eps curve, in addition to the threat's own."""
    judged_on: Literal["original", "scaled"] = "original"
    """`scaled` is the paper's protocol."""
    threat: LpBall | None = None
    """None: that of the call."""

    def __post_init__(self) -> None:
        for name in ("tables", "attacks"):
            if not getattr(self, name):
                raise ValueError(f"{name}: at least one")
        for suite in (*self.attacks, self.attack):
            suite_from(self.with_options(suite))
        if "iterations" in self.tables and not _ITERATED.match(self.attack):
            raise ValueError(f"attack: '{self.attack}' has no number of iterations; pgd-100, cw-100, gama-100 have")

    def check(self, subject: Subject) -> None:
        threat = required(self.threat, "attention_attacks")
        with needing("attacks with scaled attention", SCALED_LOGITS):
            blocks = len(attention_blocks(network(subject)))
        check_probe(subject, Scaling(torch.ones(blocks)))
        check_gradient(subject)
        suites = {suite for what in self.tables for suite, _ in self._cells(what, blocks)}
        balls = _threats(self, threat)
        for ball in balls if "eps" in self.tables else [threat]:
            for suite in sorted(suites):
                Attacked(threat=ball, suite=self.with_options(suite)).begin(subject)  # type: ignore[arg-type]

    def passes(self, subject: Subject) -> int | None:
        """At most, as results that tables share are computed once; `True` in a cell: factors are searched for."""
        cells: list[tuple[str, bool]] = []
        for what in self.tables:
            cells += self._cells(what, len(attention_blocks(network(subject))))
        if self.threat is None:
            return None
        each = [passes_of(stage.attack) for suite, _ in cells for stage in suite_from(suite).plan(self.threat).every]
        if None in each:
            return None
        attacks = sum((1 + is_searched) * (1 + (p or 0)) for p, (_, is_searched) in zip(each, cells, strict=True))
        searches = sum(is_searched for _, is_searched in cells) * (2 * FactorSearch().steps + 2)
        return len(subject.indices) * (attacks + searches)

    def _cells(self, what: What, blocks: int) -> list[tuple[str, bool]]:
        """Suites of a table, with a control where factors are searched for."""
        if what == "attacks":
            tried = [(self.attacks[-1], False)] * (len(FACTORS) - 1)
            return tried + [(suite, is_searched) for suite in self.attacks for is_searched in (False, False, True)]
        if what == "factors":
            return [(self.attack, False)] * len(FACTORS)
        if what == "iterations":
            suites = [_ITERATED.sub(rf"\1-{count}", self.attack) for count in self.iterations]
            return [(suite, is_searched) for suite in suites for is_searched in (False, True)]
        if what == "eps":
            return [(self.attack, False), (self.attack, True)] * (len(self.eps) + 1)
        return [(self.attack, False)] + [(self.attack, True)] * (len(CRITERIA) if what == "criteria" else blocks)

    def __call__(self, subject: Subject, store: Store) -> Finding:
        work = _Work(self, subject, required(self.threat, "attention_attacks"), store)
        made = [getattr(work, what)() for what in self.tables]
        judged = "the original model" if self.judged_on == "original" else "the scaled model, as the paper does"
        return Finding(
            "Attacks with scaled attention",
            f"Accuracy under {self.threat}, judged on {judged}. {len(subject.indices)} images of "
            f"{subject.images.title}. AAS: factors searched for, one for each block; compared with random ones. "
            "Whiskers and bands are 95 % intervals over the choice of images.",
            tables=tuple(table for table, _ in made),
            charts=tuple(chart for _, chart in made),
        )

    def with_options(self, suite: str, *options: str) -> str:
        wanted = [*(option for option in options if option), f"judged_on={self.judged_on}"]
        return f"aas-{suite}{',' if ':' in suite else ':'}{','.join(wanted)}"


@dataclass(frozen=True)
class _Work:
    """The evaluations that the tables are made of, kept in the folder of the analysis."""

    of: AttentionAttacks
    subject: Subject
    threat: LpBall
    store: Store

    def attacks(self) -> tuple[Table, Chart]:
        tried = {factor: self._scaled(self.of.attacks[-1], factor) for factor in FACTORS if factor != 1}
        best = min(tried, key=lambda factor: tried[factor].robust_accuracy)
        rows: list[Row] = []
        for suite in self.of.attacks:
            plain, scale, aas = self._run(suite), self._scaled(suite, best), self._aas(suite)
            if not rows:
                cleans = {"plain": _clean(plain), "+ scale": _clean(scale), "+ AAS": _clean(aas)}
                rows.append(Row("no attack", cleans | _chance(aas, _clean)))
            cells = {"plain": plain.headline, "+ scale": scale.headline, "+ AAS": aas.headline, **_chance(aas)}
            if self.of.judged_on == "original":
                both = int((plain.is_robust & aas.is_robust).sum())
                cells["plain or AAS"] = accuracy_measure(ROBUST_ACCURACY, both, plain.num_images)
            rows.append(Row(suite, cells))
        title = (
            f"Attacks (Table 3); + scale: {best:g} for all blocks, on these images the best under {self.of.attacks[-1]}"
        )
        return compared(title, "attack", rows)

    def factors(self) -> tuple[Table, Chart]:
        rows = [_row(f"{factor:g}", self._scaled(self.of.attack, factor)) for factor in FACTORS]
        return compared(f"One factor for all blocks, {self.of.attack} (Table 1)", "factor", rows)

    def criteria(self) -> tuple[Table, Chart]:
        rows = [_row("plain", self._run(self.of.attack))]
        searched = {name: self._aas(self.of.attack, f"criterion={name}") for name in CRITERIA}
        rows += [_row(name, result) for name, result in searched.items()]
        rows.append(_row("random", searched[CRITERIA[-1]].control_result))
        return compared(f"What the search raises, {self.of.attack} (Table 2)", "criterion", rows)

    def iterations(self) -> tuple[Table, Chart]:
        suites = {count: _ITERATED.sub(rf"\1-{count}", self.of.attack) for count in self.of.iterations}
        rows = [self._compared(str(count), count, self._run(suite), suite) for count, suite in suites.items()]
        family = _ITERATED.sub(r"\1-N", self.of.attack)
        return compared(f"Iterations, {family} (Fig. 4)", "iterations", rows, "iterations")

    def blocks(self) -> tuple[Table, Chart]:
        plain = self._run(self.of.attack)
        counts = range(1, len(attention_blocks(network(self.subject))) + 1)
        rows = [self._compared(str(count), count, plain, self.of.attack, f"blocks={count}") for count in counts]
        title = f"Number of scaled blocks, {self.of.attack} (Fig. 3a)"
        return compared(title, "blocks", rows, "blocks, from the first on")

    def eps(self) -> tuple[Table, Chart]:
        threats = _threats(self.of, self.threat)
        texts = [format_fraction(threat.eps) for threat in threats]
        in_255ths = all(text.endswith("/255") for text in texts)
        rows = []
        for threat, text in zip(threats, texts, strict=True):
            plain, at = self._run(self.of.attack, threat), threat.eps * (255 if in_255ths else 1)
            rows.append(self._compared(text, at, plain, self.of.attack, threat=threat))
        x_title = f"eps (L{self.threat.norm}{', in 255ths' if in_255ths else ''})"
        return compared(f"Eps, {self.of.attack} (Fig. 5c, d)", "eps", rows, x_title)

    def _compared(
        self, name: str, at: float, plain: Result, suite: str, options: str = "", threat: LpBall | None = None
    ) -> Row:
        aas = self._aas(suite, options, threat)
        clean = {"its clean": _clean(aas)} if self.of.judged_on == "scaled" else {}
        return Row(name, {"plain": plain.headline, "+ AAS": aas.headline, **clean, **_chance(aas)}, at)

    def _run(self, suite: str, threat: LpBall | None = None) -> Result:
        evaluator = Attacked(threat=threat or self.threat, suite=suite)  # type: ignore[arg-type]
        return evaluate_subject(self.subject, evaluator, Job(run=self.store.folder, checks=False))

    def _aas(self, suite: str, options: str = "", threat: LpBall | None = None) -> Result:
        return self._run(self.of.with_options(suite, options), threat)

    def _scaled(self, suite: str, factor: float) -> Result:
        return self._aas(suite, f"factors={factor:g}")


def _threats(of: AttentionAttacks, threat: LpBall) -> list[LpBall]:
    """Of the eps curve."""
    balls = [{"norm": threat.norm, "eps": eps} for eps in sorted({threat.eps, *of.eps})]
    return [validated(LpBall, ball, "attention_attacks.eps: threat") for ball in balls]


def _clean(result: Result) -> Measure:
    return result.measure(CLEAN_ACCURACY)


def _row(name: str, result: Result | None) -> Row:
    return Row(name, {} if result is None else {"clean": _clean(result), "robust": result.headline})


def _chance(aas: Result, measure: Callable[[Result], Measure] = lambda result: result.headline) -> dict[str, Measure]:
    """The control of a search."""
    return {} if aas.control_result is None else {"random factors": measure(aas.control_result)}

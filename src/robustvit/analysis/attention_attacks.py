"""The tables of Towards Understanding and Improving Adversarial Robustness of Vision Transformers (AAS, 2024).

Each cell is an evaluation of its own, judged on the model as it is unless the protocol is the paper's.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import ValidationError

from robustvit.attacks.factor_search import module_of
from robustvit.core.component import component, explain
from robustvit.core.errors import UserError
from robustvit.core.finding import Chart, Finding, Line, Table, percent
from robustvit.core.numbers import Count, Number, format_fraction
from robustvit.evaluation.evaluate import evaluate
from robustvit.evaluation.result import EvalResult, wilson_interval
from robustvit.evaluation.subject import Subject
from robustvit.evaluation.suites import suite_from
from robustvit.models.attention_probe import attention_blocks
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
    attacks: tuple[str, ...] = ("fgsm", "pgd-20", "pgd-100", "cw-100", "dlr-100", "gama-100")
    """Suites of the rows of Table 3; the last of them chooses the factor for all blocks, as GAMA does in the paper."""
    attack: str = "pgd-100"
    """What the other tables attack with."""
    iterations: tuple[Count, ...] = (10, 50, 100, 200, 500, 1000)
    eps: tuple[Number, ...] = tuple(size / 255 for size in (8, 16, 32, 64, 105))
    """For the eps curve, beside the threat's own."""
    protocol: Literal["transfer", "paper"] = "transfer"

    def __post_init__(self) -> None:
        for name in ("tables", "attacks"):
            if not getattr(self, name):
                raise ValueError(f"{name}: at least one")
        for suite in (*self.attacks, self.attack):
            suite_from(self._with_options(suite))
        if "iterations" in self.tables and not _ITERATED.match(self.attack):
            raise ValueError(f"attack: '{self.attack}' has no number of iterations; pgd-100, cw-100, gama-100 have")

    def __call__(self, subject: Subject) -> Finding:
        attention_blocks(module_of(subject))  # told before hours of attacks, as are eps
        self._threats(subject)
        makers = {
            "attacks": self._attacks,
            "factors": self._factors,
            "criteria": self._criteria,
            "iterations": self._iterations,
            "blocks": self._blocks,
            "eps": self._eps,
        }
        made = [makers[what](subject) for what in self.tables]
        judged = "the model as it is" if self.protocol == "transfer" else "the scaled model, as the paper does"
        return Finding(
            "Attacks with scaled attention",
            f"Accuracy under {subject.threat}, {len(subject.indices)} images of {subject.images.title}, judged on "
            f"{judged} (protocol {self.protocol}). AAS: factors searched for, one for each block; beside it random "
            "ones. Whiskers and bands are 95 % intervals over the choice of images.",
            tables=tuple(table for table, _ in made),
            charts=tuple(chart for _, chart in made),
        )

    def _attacks(self, subject: Subject) -> tuple[Table, Chart]:
        tried = {factor: self._scaled(subject, self.attacks[-1], factor) for factor in FACTORS if factor != 1}
        best = min(tried, key=lambda factor: tried[factor].robust_accuracy)
        rows: list[_Row] = []
        for suite in self.attacks:
            plain, scale, aas = self._run(subject, suite), self._scaled(subject, suite, best), self._aas(subject, suite)
            if not rows:
                cleans = {"plain": plain, "+ scale": scale, "+ AAS": aas}
                rows.append(
                    _Row("no attack", {name: _clean(one) for name, one in cleans.items()} | _chance(aas, "clean"))
                )
            cells = {"plain": _robust(plain), "+ scale": _robust(scale), "+ AAS": _robust(aas), **_chance(aas)}
            if self.protocol == "transfer":
                both = int((plain.is_robust & aas.is_robust).sum())
                cells["plain or AAS"] = _Cell(both / plain.num_images, wilson_interval(both, plain.num_images))
            rows.append(_Row(suite, cells))
        title = (
            f"Attacks (Table 3); + scale: {best:g} for all blocks, on these images the best under {self.attacks[-1]}"
        )
        return _shown(title, "attack", rows)

    def _factors(self, subject: Subject) -> tuple[Table, Chart]:
        rows = []
        for factor in FACTORS:
            found = self._scaled(subject, self.attack, factor)
            rows.append(_Row(f"{factor:g}", {"clean": _clean(found), "robust": _robust(found)}))
        return _shown(f"One factor for all blocks, {self.attack} (Table 1)", "factor", rows)

    def _criteria(self, subject: Subject) -> tuple[Table, Chart]:
        plain = self._run(subject, self.attack)
        rows = [_Row("plain", {"clean": _clean(plain), "robust": _robust(plain)})]
        for criterion in CRITERIA:
            found = self._aas(subject, self.attack, f"criterion={criterion}")
            rows.append(_Row(criterion, {"clean": _clean(found), "robust": _robust(found)}))
        rows.append(_Row("random", {**_chance(found, "clean", "clean"), **_chance(found, name="robust")}))
        return _shown(f"What the search raises, {self.attack} (Table 2)", "criterion", rows)

    def _iterations(self, subject: Subject) -> tuple[Table, Chart]:
        suites = {count: _ITERATED.sub(rf"\1-{count}", self.attack) for count in self.iterations}
        rows = [
            self._compared(subject, str(count), count, self._run(subject, suite), suite)
            for count, suite in suites.items()
        ]
        family = _ITERATED.sub(r"\1-N", self.attack)
        return _shown(f"Iterations, {family} (Fig. 4)", "iterations", rows, "iterations")

    def _blocks(self, subject: Subject) -> tuple[Table, Chart]:
        plain = self._run(subject, self.attack)
        rows = [
            self._compared(subject, str(count), count, plain, self.attack, f"blocks={count}")
            for count in range(1, len(attention_blocks(module_of(subject))) + 1)
        ]
        return _shown(f"Number of scaled blocks, {self.attack} (Fig. 3a)", "blocks", rows, "blocks, from the first on")

    def _eps(self, subject: Subject) -> tuple[Table, Chart]:
        threats = self._threats(subject)
        texts = [format_fraction(threat.eps) for threat in threats]
        in_255ths = all(text.endswith("/255") for text in texts)
        rows = []
        for threat, text in zip(threats, texts, strict=True):
            plain, at = self._run(subject, self.attack, threat), threat.eps * (255 if in_255ths else 1)
            rows.append(self._compared(subject, text, at, plain, self.attack, threat=threat))
        x_title = f"eps (L{subject.threat.norm}{', in 255ths' if in_255ths else ''})"
        return _shown(f"Eps, {self.attack} (Fig. 5c, d)", "eps", rows, x_title)

    def _threats(self, subject: Subject) -> list[LpBall]:
        try:
            return [LpBall(subject.threat.norm, eps) for eps in sorted({subject.threat.eps, *self.eps})]
        except ValidationError as error:
            raise UserError(f"attention_attacks.eps: {explain(error, 'threat')}") from None

    def _compared(
        self,
        subject: Subject,
        name: str,
        at: float,
        plain: EvalResult,
        suite: str,
        options: str = "",
        threat: LpBall | None = None,
    ) -> "_Row":
        aas = self._aas(subject, suite, options, threat)
        clean = {"its clean": _clean(aas)} if self.protocol == "paper" else {}
        return _Row(name, {"plain": _robust(plain), "+ AAS": _robust(aas), **clean, **_chance(aas)}, at)

    def _run(self, subject: Subject, suite: str, threat: LpBall | None = None) -> EvalResult:
        return evaluate(
            subject.model, subject.images, suite=suite, threat=threat or subject.threat, batch_size=subject.batch_size,
            seed=subject.seed, images=len(subject.indices), device=subject.device, checks=False, quiet=subject.quiet,
            run=subject.run,
        )  # fmt: skip

    def _aas(self, subject: Subject, suite: str, options: str = "", threat: LpBall | None = None) -> EvalResult:
        return self._run(subject, self._with_options(suite, options), threat)

    def _scaled(self, subject: Subject, suite: str, factor: float) -> EvalResult:
        return self._aas(subject, suite, f"factors={factor:g}")

    def _with_options(self, suite: str, *options: str) -> str:
        wanted = [*(option for option in options if option), f"protocol={self.protocol}"]
        return f"aas-{suite}{',' if ':' in suite else ':'}{','.join(wanted)}"


@dataclass(frozen=True)
class _Cell:
    share: float
    interval: tuple[float, float]


@dataclass(frozen=True)
class _Row:
    name: str
    cells: Mapping[str, _Cell]
    at: float | None = None
    """Its place on an axis of numbers."""


def _robust(found: EvalResult) -> _Cell:
    return _Cell(found.robust_accuracy, found.interval)


def _clean(found: EvalResult) -> _Cell:
    return _Cell(found.clean_accuracy, found.clean_interval)


def _chance(
    aas: EvalResult, what: Literal["robust", "clean"] = "robust", name: str = "random factors"
) -> dict[str, _Cell]:
    """The control that stands beside a search."""
    assert aas.attention is not None
    share = float(aas.attention["control"][f"{what}_accuracy"])
    return {name: _Cell(share, wilson_interval(round(share * aas.num_images), aas.num_images))}


def _shown(title: str, header: str, rows: Sequence[_Row], x_title: str = "") -> tuple[Table, Chart]:
    """As a table; and as lines over an axis of numbers, or dots in named rows."""
    names = list(dict.fromkeys(name for row in rows for name in row.cells))
    table = Table(
        title,
        (header, *names),
        tuple(
            (row.name, *(percent(row.cells[name].share) if name in row.cells else "" for name in names)) for row in rows
        ),
    )
    lines = []
    for name in names:
        have = [(number, row) for number, row in enumerate(rows) if name in row.cells]
        lines.append(
            Line(
                name,
                tuple(float(number if row.at is None else row.at) for number, row in have),
                tuple(row.cells[name].share for _, row in have),
                tuple(row.cells[name].interval for _, row in have),
            )
        )
    if x_title:
        return table, Chart(title, x_title, tuple(lines), in_percent=True)
    return table, Chart(title, "accuracy", tuple(lines), True, "dots", tuple(row.name for row in rows))

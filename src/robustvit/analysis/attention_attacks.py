"""The tables of Towards Understanding and Improving Adversarial Robustness of Vision Transformers (AAS, 2024).

Each cell is an evaluation of its own, judged on the model as it is unless the protocol is the paper's.
"""

from collections.abc import Sequence
from typing import Literal

from robustvit.analysis.base import Chart, Finding, Table, percent
from robustvit.attacks.attention_scaling import module_of
from robustvit.attacks.base import Count
from robustvit.core.component import component
from robustvit.evaluation.evaluate import evaluate
from robustvit.evaluation.result import EvalResult
from robustvit.evaluation.subject import Subject
from robustvit.models.attention_probe import attention_blocks
from robustvit.threats import LpBall

FACTORS = (10.0, 1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5)
"""The paper's set for all blocks."""
CRITERIA = ("squared", "literal", "unit", "ce", "cw", "gama")
What = Literal["attacks", "factors", "criteria", "iterations", "blocks", "eps"]


@component("analysis", "attention_attacks")
class AttentionAttacks:
    """Attacks plain, with one factor for all blocks, with searched and random ones (Tables 1 to 3, Figures 3 to 5)."""

    tables: tuple[What, ...] = ("attacks", "factors", "criteria")
    attacks: tuple[str, ...] = ("fgsm", "pgd-20", "pgd-100", "cw-100", "dlr-100", "gama-100")
    """Suites of the rows of Table 3."""
    attack: str = "pgd-100"
    """What the other tables attack with."""
    iterations: tuple[Count, ...] = (10, 50, 100, 200, 500, 1000)
    eps: tuple[float, ...] = tuple(255**-1 * size for size in (8, 16, 32, 64, 105))
    """For the eps curve, beside the threat's own."""
    protocol: Literal["transfer", "paper"] = "transfer"

    def __call__(self, subject: Subject) -> Finding:
        makers = {
            "attacks": self._attacks,
            "factors": self._factors,
            "criteria": self._criteria,
            "iterations": self._iterations,
            "blocks": self._blocks,
            "eps": self._eps,
        }
        tables, charts = [], []
        for what in self.tables:
            table, chart = makers[what](subject)
            tables.append(table)
            charts += [chart] if chart else []
        judged = "the model as it is" if self.protocol == "transfer" else "the scaled model, as the paper does"
        return Finding(
            "Attacks with scaled attention",
            f"Robust accuracy in percent under {subject.threat}, {len(subject.indices)} images, judged on {judged}. "
            "'worst' counts an image as robust where neither the plain nor the scaled attack fools it.",
            tables=tuple(tables),
            charts=tuple(charts),
        )

    def _attacks(self, subject: Subject) -> tuple[Table, None]:
        rows = []
        for suite in self.attacks:
            plain, aas = self._run(subject, suite), self._scaled(subject, suite)
            scale = {factor: self._scaled(subject, suite, f"factors={factor:g}") for factor in FACTORS if factor != 1}
            best = min(scale, key=lambda factor: scale[factor].robust_accuracy)
            random = self._random(subject, suite, aas)
            worst = float((plain.is_robust & aas.is_robust).mean())
            found = (plain.robust_accuracy, scale[best].robust_accuracy, aas.robust_accuracy, random, worst)
            rows.append((suite, *(percent(share) for share in found), f"{best:g}"))
        columns = ("attack", "plain", "+ scale", "+ AAS", "random factors", "worst", "best factor for all")
        return Table("Attacks (Table 3)", columns, tuple(rows)), None

    def _factors(self, subject: Subject) -> tuple[Table, Chart]:
        rows, points = [], []
        for factor in FACTORS:
            found = self._scaled(subject, self.attack, f"factors={factor:g}")
            rows.append((f"{factor:g}", percent(found.clean_accuracy), percent(found.robust_accuracy)))
            points.append(found.robust_accuracy)
        series = ((self.attack, tuple(float(number) for number in range(len(FACTORS))), tuple(points)),)
        chart = Chart("One factor for all blocks, from 10 to 1e-5", "number of the factor", series, in_percent=True)
        return Table(
            f"One factor for all blocks, {self.attack} (Table 1)", ("factor", "clean", "robust"), tuple(rows)
        ), chart

    def _criteria(self, subject: Subject) -> tuple[Table, None]:
        rows = [("none: plain", "", percent(self._run(subject, self.attack).robust_accuracy))]
        for criterion in CRITERIA:
            found = self._scaled(subject, self.attack, f"criterion={criterion}")
            rows.append((criterion, percent(found.clean_accuracy), percent(found.robust_accuracy)))
        rows.append(("random factors", "", percent(self._random(subject, self.attack, found))))
        return Table(
            f"What the search raises, {self.attack} (Table 2)", ("criterion", "clean", "robust"), tuple(rows)
        ), None

    def _iterations(self, subject: Subject) -> tuple[Table, Chart]:
        return self._compared(
            subject, f"Iterations, {_family(self.attack)} (Fig. 4)", "iterations",
            [(count, f"{_family(self.attack)}-{count}", "") for count in self.iterations],
        )  # fmt: skip

    def _blocks(self, subject: Subject) -> tuple[Table, Chart]:
        count = len(attention_blocks(module_of(subject)))
        title = f"Number of scaled blocks, {self.attack} (Fig. 3a)"
        return self._compared(subject, title, "blocks", [(n, self.attack, f"blocks={n}") for n in range(1, count + 1)])

    def _eps(self, subject: Subject) -> tuple[Table, Chart]:
        cases = sorted({subject.threat.eps, *self.eps})
        rows = []
        lines: list[tuple[str, list[float]]] = [("plain", []), ("+ AAS", [])]
        for eps in cases:
            threat = LpBall(subject.threat.norm, eps)
            found = [self._run(subject, self.attack, threat), self._scaled(subject, self.attack, threat=threat)]
            rows.append((f"{255 * eps:g}/255", *(percent(one.robust_accuracy) for one in found)))
            for (_, points), one in zip(lines, found, strict=True):
                points.append(one.robust_accuracy)
        series = tuple((name, tuple(255 * eps for eps in cases), tuple(points)) for name, points in lines)
        table = Table(f"Eps, {self.attack} (Fig. 5c, d)", ("eps", "plain", "+ AAS"), tuple(rows))
        return table, Chart("Robust accuracy against eps", "eps in 255ths", series, in_percent=True)

    def _compared(
        self, subject: Subject, title: str, x_title: str, cases: Sequence[tuple[int, str, str]]
    ) -> tuple[Table, Chart]:
        rows, plain, scaled = [], [], []
        for number, suite, options in cases:
            plain.append(self._run(subject, suite).robust_accuracy)
            scaled.append(self._scaled(subject, suite, options).robust_accuracy)
            rows.append((str(number), percent(plain[-1]), percent(scaled[-1])))
        places = tuple(float(number) for number, _, _ in cases)
        series = (("plain", places, tuple(plain)), ("+ AAS", places, tuple(scaled)))
        return Table(title, (x_title, "plain", "+ AAS"), tuple(rows)), Chart(title, x_title, series, in_percent=True)

    def _run(self, subject: Subject, suite: str, threat: LpBall | None = None) -> EvalResult:
        return evaluate(
            subject.model, subject.images, suite=suite, threat=threat or subject.threat, batch_size=subject.batch_size,
            seed=subject.seed, images=len(subject.indices), device=subject.device, checks=False, quiet=subject.quiet,
            run=subject.run,
        )  # fmt: skip

    def _scaled(self, subject: Subject, suite: str, options: str = "", threat: LpBall | None = None) -> EvalResult:
        wanted = [options] if options else []
        wanted += ["protocol=paper"] if self.protocol == "paper" else []
        return self._run(subject, f"aas-{suite}{':' if wanted else ''}{','.join(wanted)}", threat)

    def _random(self, subject: Subject, suite: str, aas: EvalResult) -> float:
        """The control that stands beside a search."""
        assert aas.attention is not None
        beside: float = aas.attention["control"]["robust_accuracy"]
        return beside


def _family(suite: str) -> str:
    return suite.rpartition("-")[0] or suite

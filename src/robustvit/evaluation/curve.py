"""Several eps in one call."""

from collections.abc import Sequence
from typing import Any

from robustvit.attacks.base import Classifier
from robustvit.core.errors import UserError
from robustvit.evaluation.evaluate import evaluate
from robustvit.evaluation.result import EvalResult
from robustvit.threats import LpBall


def evaluate_curve(model: Classifier, data: Any, *, threats: Sequence[LpBall], **options: Any) -> list[EvalResult]:
    """`evaluate` for each threat from the smallest eps on, sharing the work; each has a folder and a result of its own.

    `options` are those of `evaluate`.
    """
    if any(not isinstance(threat, LpBall) for threat in threats):
        raise UserError("threats: balls such as rv.LpBall('inf', 8 / 255)")
    if not threats or len({threat.norm for threat in threats}) > 1:
        raise UserError("threats: at least one, all of one norm")
    results: list[EvalResult] = []
    for threat in sorted(set(threats), key=lambda threat: threat.eps):
        smaller = results[-1] if results else None
        results.append(evaluate(model, data, threat=threat, smaller=smaller, **options))
    return results

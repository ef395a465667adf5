"""Models into results that can be trusted: suites of attacks, a ledger of outcomes, and the judge."""

from robustvit.evaluation.curve import evaluate_curve
from robustvit.evaluation.evaluate import evaluate
from robustvit.evaluation.result import EvalResult
from robustvit.evaluation.stages import Stage, Suite
from robustvit.evaluation.suites import suite_from
from robustvit.evaluation.verify import verify

__all__ = ["EvalResult", "Stage", "Suite", "evaluate", "evaluate_curve", "suite_from", "verify"]

"""Models into results that can be trusted: suites of attacks, a ledger of outcomes, and the judge."""

from robustvit.evaluation.evaluate import evaluate
from robustvit.evaluation.result import EvalResult
from robustvit.evaluation.suites import Stage, Suite, suite_from

__all__ = ["EvalResult", "Stage", "Suite", "evaluate", "suite_from"]

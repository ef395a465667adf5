"""Models into results that can be trusted: evaluators, suites of attacks, a ledger of outcomes, and the judge.

One import line a module is what registers it.
"""

from robustvit.core.result import Result
from robustvit.evaluation import attention_suites, suite_names  # noqa: F401 - short forms of suites
from robustvit.evaluation.attacked import Attacked
from robustvit.evaluation.conditions import Accuracy, Condition, ConditionEvaluator
from robustvit.evaluation.engine import Job, evaluate_subject
from robustvit.evaluation.evaluate import evaluate, evaluate_curve, evaluator_from, named_evaluator
from robustvit.evaluation.evaluator import Evaluation, Evaluator
from robustvit.evaluation.plan import Plan, Stage
from robustvit.evaluation.subject import Subject, open_subject
from robustvit.evaluation.suite import suite_from
from robustvit.evaluation.verify import verify

__all__ = [
    "Accuracy",
    "Attacked",
    "Condition",
    "ConditionEvaluator",
    "Evaluation",
    "Evaluator",
    "Job",
    "Plan",
    "Result",
    "Stage",
    "Subject",
    "evaluate",
    "evaluate_curve",
    "evaluate_subject",
    "evaluator_from",
    "named_evaluator",
    "open_subject",
    "suite_from",
    "verify",
]

"""Models into results that can be trusted: evaluators, suites of attacks, a ledger of outcomes, and the judge.

One import line a module is what registers it.
"""

from robustvit.core.result import Result as Result
from robustvit.evaluation import attention_suites, suite_names  # noqa: F401 - short forms of suites
from robustvit.evaluation.attacked import Attacked as Attacked
from robustvit.evaluation.conditions import (
    Accuracy as Accuracy,
    Condition as Condition,
    ConditionEvaluator as ConditionEvaluator,
)
from robustvit.evaluation.corruptions import Corruptions as Corruptions
from robustvit.evaluation.cue_conflict import ShapeOrTexture as ShapeOrTexture
from robustvit.evaluation.engine import Job as Job, evaluate_subject as evaluate_subject
from robustvit.evaluation.evaluate import (
    evaluate as evaluate,
    evaluate_curve as evaluate_curve,
    evaluator_from as evaluator_from,
    named_evaluator as named_evaluator,
    needs_threat as needs_threat,
    own_data as own_data,
)
from robustvit.evaluation.evaluator import Evaluation as Evaluation, Evaluator as Evaluator
from robustvit.evaluation.plan import Plan as Plan, Stage as Stage
from robustvit.evaluation.saved import verify as verify
from robustvit.evaluation.shifts import Shift as Shift
from robustvit.evaluation.spatial import Spatial as Spatial
from robustvit.evaluation.subject import Subject as Subject, open_subject as open_subject
from robustvit.evaluation.suite import suite_from as suite_from
from robustvit.evaluation.transfer_matrix import TransferMatrix as TransferMatrix

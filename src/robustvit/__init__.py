"""Train, attack, evaluate and understand adversarially robust vision transformers.

    import robustvit as rv

Names are imported when they are first used: `robustvit --help` need not wait for torch.
"""

import importlib
from importlib import metadata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from robustvit import attacks as attacks, objectives as objectives
    from robustvit.analysis import analyze as analyze
    from robustvit.cards import card as card
    from robustvit.core.errors import UserError as UserError
    from robustvit.core.result import Result as Result
    from robustvit.core.streams import sample_streams as sample_streams
    from robustvit.data.open import load_data as load_data
    from robustvit.evaluation import evaluate as evaluate, evaluate_curve as evaluate_curve, verify as verify
    from robustvit.evaluation.one_picture import attack_picture as attack_picture
    from robustvit.models import (
        ModelSettings as ModelSettings,
        create_model as create_model,
        load_model as load_model,
        model_cost as model_cost,
        normalized as normalized,
        resolve_model as resolve_model,
        save_model as save_model,
    )
    from robustvit.planning import plan as plan
    from robustvit.reporting import leaderboard as leaderboard, report as report
    from robustvit.synthesis import generate as generate, quality as quality, score as score
    from robustvit.threats import LpBall as LpBall
    from robustvit.training import Recipe as Recipe, load_recipe as load_recipe, train as train

__version__ = metadata.version("robustvit")

_PACKAGES = ("attacks", "objectives")
_NAMES = {
    "analysis": "analyze",
    "cards": "card",
    "core.errors": "UserError",
    "core.result": "Result",
    "core.streams": "sample_streams",
    "data.open": "load_data",
    "evaluation": "evaluate evaluate_curve verify",
    "evaluation.one_picture": "attack_picture",
    "models": "ModelSettings create_model load_model model_cost normalized resolve_model save_model",
    "planning": "plan",
    "reporting": "leaderboard report",
    "synthesis": "generate quality score",
    "threats": "LpBall",
    "training": "Recipe load_recipe train",
}
"""Of each module, the names that are also the package's."""
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = sorted([*_PACKAGES, *_HOMES])


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return importlib.import_module(f"robustvit.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'robustvit' has no attribute '{name}'")
    value = getattr(importlib.import_module(f"robustvit.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]

"""Train, attack, evaluate and understand adversarially robust vision transformers.

    import robustvit as rv

Names are imported when they are first used: `robustvit --help` need not wait for torch.
"""

import importlib
from importlib import metadata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from robustvit import attacks, objectives
    from robustvit.analysis import analyze
    from robustvit.core.errors import UserError
    from robustvit.core.result import Result
    from robustvit.core.streams import sample_streams
    from robustvit.evaluation import evaluate, evaluate_curve, verify
    from robustvit.models import (
        ModelSettings,
        create_model,
        load_model,
        model_cost,
        normalized,
        resolve_model,
        save_model,
    )
    from robustvit.reporting import report
    from robustvit.threats import LpBall
    from robustvit.training import Recipe, train

__version__ = metadata.version("robustvit")

_HOMES = {
    "analyze": "analysis",
    "LpBall": "threats",
    "ModelSettings": "models",
    "Recipe": "training",
    "Result": "core.result",
    "UserError": "core.errors",
    "create_model": "models",
    "evaluate": "evaluation",
    "evaluate_curve": "evaluation",
    "load_model": "models",
    "model_cost": "models",
    "normalized": "models",
    "report": "reporting",
    "resolve_model": "models",
    "sample_streams": "core.streams",
    "save_model": "models",
    "train": "training",
    "verify": "evaluation",
}
_PACKAGES = ("attacks", "objectives")

__all__ = [
    "LpBall",
    "ModelSettings",
    "Recipe",
    "Result",
    "UserError",
    "analyze",
    "attacks",
    "create_model",
    "evaluate",
    "evaluate_curve",
    "load_model",
    "model_cost",
    "normalized",
    "objectives",
    "report",
    "resolve_model",
    "sample_streams",
    "save_model",
    "train",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return importlib.import_module(f"robustvit.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'robustvit' has no attribute '{name}'")
    value = getattr(importlib.import_module(f"robustvit.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])

"""Classifiers that take pixels in [0, 1]: timm's, with the normalization inside, and their weights on disk."""

from robustvit.models.cost import Cost, model_cost
from robustvit.models.create import ModelSettings, create_model
from robustvit.models.modes import attacking, eval_mode, in_mode
from robustvit.models.normalize import Normalized, normalized
from robustvit.models.reference import ModelHints, ModelRef, resolve_model
from robustvit.models.weights import fingerprint, load_checkpoint, load_model, load_state, save_model

__all__ = [
    "Cost",
    "ModelHints",
    "ModelRef",
    "ModelSettings",
    "Normalized",
    "attacking",
    "create_model",
    "eval_mode",
    "fingerprint",
    "in_mode",
    "load_checkpoint",
    "load_model",
    "load_state",
    "model_cost",
    "normalized",
    "resolve_model",
    "save_model",
]

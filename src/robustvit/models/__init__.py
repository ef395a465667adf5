"""Classifiers that take pixels in [0, 1]: timm's, with the normalization inside, and their weights on disk."""

from robustvit.models import adapters, attention_factors  # noqa: F401 - register components and extra state
from robustvit.models.cost import Cost as Cost, model_cost as model_cost
from robustvit.models.create import ModelSettings as ModelSettings, create_model as create_model
from robustvit.models.heads import head_names as head_names, through as through
from robustvit.models.hints import ModelHints as ModelHints
from robustvit.models.modes import attacking as attacking, eval_mode as eval_mode, in_mode as in_mode
from robustvit.models.normalize import Normalized as Normalized, normalized as normalized
from robustvit.models.reference import (
    ModelRef as ModelRef,
    load_model as load_model,
    resolve_model as resolve_model,
)
from robustvit.models.weights import (
    fingerprint as fingerprint,
    load_checkpoint as load_checkpoint,
    load_state as load_state,
    save_model as save_model,
)

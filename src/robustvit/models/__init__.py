"""Classifiers that take pixels in [0, 1]: timm's, with the normalization inside, and their weights on disk."""

from robustvit.models.cost import Cost as Cost
from robustvit.models.cost import model_cost as model_cost
from robustvit.models.create import ModelSettings as ModelSettings
from robustvit.models.create import create_model as create_model
from robustvit.models.modes import attacking as attacking
from robustvit.models.modes import eval_mode as eval_mode
from robustvit.models.modes import in_mode as in_mode
from robustvit.models.normalize import Normalized as Normalized
from robustvit.models.normalize import normalized as normalized
from robustvit.models.reference import ModelHints as ModelHints
from robustvit.models.reference import ModelRef as ModelRef
from robustvit.models.reference import resolve_model as resolve_model
from robustvit.models.weights import fingerprint as fingerprint
from robustvit.models.weights import load_model as load_model
from robustvit.models.weights import load_state as load_state
from robustvit.models.weights import save_model as save_model

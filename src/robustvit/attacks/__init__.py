"""Searches inside a threat. One import line a module is what registers it."""

from robustvit.attacks.apgd import APGD
from robustvit.attacks.ascent import FGSM, PGD
from robustvit.attacks.attention_scaling import AttentionScaling
from robustvit.attacks.base import Attack, Classifier, Search
from robustvit.attacks.carlini_wagner import CarliniWagner
from robustvit.attacks.combine import Ensemble, FromSurrogate, Restarts
from robustvit.attacks.fab import FAB
from robustvit.attacks.factor_search import FactorSearch
from robustvit.attacks.gama import GAMA
from robustvit.attacks.mim import MIM
from robustvit.attacks.nested import (
    Suspect,
    attacks_inside,
    check_norms,
    follows_gradients,
    inner_attacks,
    innermost,
    judges_changed_model,
    label,
    mapped,
    suspect_of,
)
from robustvit.attacks.square import Square

__all__ = [
    "APGD",
    "FAB",
    "FGSM",
    "GAMA",
    "MIM",
    "PGD",
    "Attack",
    "AttentionScaling",
    "CarliniWagner",
    "Classifier",
    "Ensemble",
    "FactorSearch",
    "FromSurrogate",
    "Restarts",
    "Search",
    "Square",
    "Suspect",
    "attacks_inside",
    "check_norms",
    "follows_gradients",
    "inner_attacks",
    "innermost",
    "judges_changed_model",
    "label",
    "mapped",
    "suspect_of",
]

"""Searches inside a threat. One import line a module is what registers it."""

from robustvit.attacks.apgd import APGD as APGD
from robustvit.attacks.ascent import FGSM as FGSM, GAMA as GAMA, MIM as MIM, PGD as PGD
from robustvit.attacks.attention_scaling import AttentionScaling as AttentionScaling
from robustvit.attacks.base import Attack as Attack, Classifier as Classifier, Search as Search
from robustvit.attacks.carlini_wagner import CarliniWagner as CarliniWagner
from robustvit.attacks.combine import (
    Ensemble as Ensemble,
    FromSurrogate as FromSurrogate,
    Restarts as Restarts,
    ThroughHead as ThroughHead,
)
from robustvit.attacks.fab import FAB as FAB
from robustvit.attacks.factor_search import FactorSearch as FactorSearch
from robustvit.attacks.hooks import (
    Suspect as Suspect,
    attacks_inside as attacks_inside,
    check_norms as check_norms,
    follows_gradients as follows_gradients,
    inner_attacks as inner_attacks,
    innermost as innermost,
    judges_changed_model as judges_changed_model,
    label as label,
    mapped as mapped,
    passes_of as passes_of,
    suspect_of as suspect_of,
)
from robustvit.attacks.low_precision import LowPrecision as LowPrecision
from robustvit.attacks.square import Square as Square

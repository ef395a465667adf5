"""Searches inside a threat. One import line a module is what registers it."""

from robustvit.attacks.apgd import APGD as APGD
from robustvit.attacks.ascent import FGSM as FGSM
from robustvit.attacks.ascent import GAMA as GAMA
from robustvit.attacks.ascent import MIM as MIM
from robustvit.attacks.ascent import PGD as PGD
from robustvit.attacks.attention_scaling import AttentionScaling as AttentionScaling
from robustvit.attacks.base import Attack as Attack
from robustvit.attacks.base import Classifier as Classifier
from robustvit.attacks.base import Search as Search
from robustvit.attacks.carlini_wagner import CarliniWagner as CarliniWagner
from robustvit.attacks.combine import Ensemble as Ensemble
from robustvit.attacks.combine import FromSurrogate as FromSurrogate
from robustvit.attacks.combine import Restarts as Restarts
from robustvit.attacks.fab import FAB as FAB
from robustvit.attacks.factor_search import FactorSearch as FactorSearch
from robustvit.attacks.nested import Suspect as Suspect
from robustvit.attacks.nested import attacks_inside as attacks_inside
from robustvit.attacks.nested import check_norms as check_norms
from robustvit.attacks.nested import follows_gradients as follows_gradients
from robustvit.attacks.nested import inner_attacks as inner_attacks
from robustvit.attacks.nested import innermost as innermost
from robustvit.attacks.nested import judges_changed_model as judges_changed_model
from robustvit.attacks.nested import label as label
from robustvit.attacks.nested import mapped as mapped
from robustvit.attacks.nested import suspect_of as suspect_of
from robustvit.attacks.square import Square as Square

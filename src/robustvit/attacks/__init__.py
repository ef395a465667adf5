"""Searches inside a threat. One import line a module is what registers it."""

from robustvit.attacks.apgd import APGD
from robustvit.attacks.ascent import FGSM, PGD
from robustvit.attacks.base import Attack, Classifier
from robustvit.attacks.combine import Restarts
from robustvit.attacks.fab import FAB
from robustvit.attacks.square import Square

__all__ = ["APGD", "FAB", "FGSM", "PGD", "Attack", "Classifier", "Restarts", "Square"]

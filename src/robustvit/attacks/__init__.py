"""Searches inside a threat. One import line a module is what registers it."""

from robustvit.attacks.ascent import FGSM, PGD
from robustvit.attacks.base import Attack, Classifier
from robustvit.attacks.combine import Restarts

__all__ = ["FGSM", "PGD", "Attack", "Classifier", "Restarts"]

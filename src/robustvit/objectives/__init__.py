"""Attacked batches into training losses. One import line a module is what registers it."""

from robustvit.objectives.adversarial import Adversarial
from robustvit.objectives.base import Losses, Objective, Perturbed
from robustvit.objectives.mart import Mart
from robustvit.objectives.random_dropping import RandomDropping
from robustvit.objectives.standard import Standard
from robustvit.objectives.trades import Trades
from robustvit.objectives.weight_perturbation import WeightPerturbation
from robustvit.objectives.weighted import WeightedSum

__all__ = [
    "Adversarial",
    "Losses",
    "Mart",
    "Objective",
    "Perturbed",
    "RandomDropping",
    "Standard",
    "Trades",
    "WeightPerturbation",
    "WeightedSum",
]

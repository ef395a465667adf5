"""Attacked batches into training losses. One import line a module is what registers it."""

from robustvit.objectives.adversarial import Adversarial as Adversarial, Standard as Standard
from robustvit.objectives.base import Losses as Losses, Objective as Objective, Perturbed as Perturbed
from robustvit.objectives.mart import Mart as Mart
from robustvit.objectives.random_dropping import RandomDropping as RandomDropping
from robustvit.objectives.trades import Trades as Trades
from robustvit.objectives.weight_perturbation import WeightPerturbation as WeightPerturbation
from robustvit.objectives.weighted import TradeOff as TradeOff, WeightedSum as WeightedSum

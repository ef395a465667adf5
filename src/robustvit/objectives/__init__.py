"""Attacked batches into training losses. One import line a module is what registers it."""

from robustvit.objectives.adversarial import Adversarial
from robustvit.objectives.base import Losses, Objective
from robustvit.objectives.standard import Standard
from robustvit.objectives.trades import Trades

__all__ = ["Adversarial", "Losses", "Objective", "Standard", "Trades"]

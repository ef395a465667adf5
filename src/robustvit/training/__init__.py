"""Recipes into trained models."""

from robustvit.training.classify import Classification
from robustvit.training.events import AttentionScalingEvent
from robustvit.training.recipe import Phase, Recipe, recipe_from
from robustvit.training.train import train

__all__ = ["AttentionScalingEvent", "Classification", "Phase", "Recipe", "recipe_from", "train"]

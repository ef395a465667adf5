"""Recipes into trained models."""

from robustvit.training.recipe import Phase, Recipe, recipe_from
from robustvit.training.train import train

__all__ = ["Phase", "Recipe", "recipe_from", "train"]

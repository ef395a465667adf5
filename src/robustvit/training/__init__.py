"""Recipes into trained models."""

from robustvit.training import base_recipe
from robustvit.training.attention_event import AttentionScalingEvent as AttentionScalingEvent
from robustvit.training.classify import Classification as Classification
from robustvit.training.recipe import Phase as Phase, Recipe as Recipe, recipe_from as recipe_from
from robustvit.training.train import train as train

load_recipe = base_recipe.any_recipe

"""Robustness cards: a preset of evaluations for one or several models, and one page of their results."""

from robustvit.cards.make import card as card, make_card as make_card
from robustvit.cards.opening import plan_card as plan_card
from robustvit.cards.plan import CardPlan as CardPlan
from robustvit.cards.preset import Preset as Preset, load_preset as load_preset, shipped_presets as shipped_presets

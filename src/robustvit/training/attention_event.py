"""Adaptive attention scaling in training (AAS-AT, Jain and Dutta 2024): an event around any objective."""

import statistics

import torch
from torch import nn

from robustvit.attacks.factor_search import FactorSearch
from robustvit.core.component import component
from robustvit.core.journal import Row
from robustvit.core.numbers import Count
from robustvit.data.base import Images, as_pixels
from robustvit.models import eval_mode
from robustvit.models.attention_factors import attention_factors, set_attention_factors
from robustvit.models.attention_probe import scalable_blocks


@component("event", "attention_scaling")
class AttentionScalingEvent:
    """AAS-AT: every few epochs, a search for attention factors that become the model's own.

    It starts from the factors so far, on training images, and moves no weight. The factors hold from then on: in the
    attack, the loss, the average and whatever uses the model later.
    """

    every: Count = 10
    """Epochs; the paper finds 5 to 40 alike."""
    search: FactorSearch = FactorSearch()
    """How factors are searched for."""

    def check(self, model: nn.Module) -> None:
        with torch.no_grad():
            set_attention_factors(model, (1.0,) * len(scalable_blocks(model)))

    def is_due(self, epoch: int) -> bool:
        """Not before the first epoch, when the model has learned nothing yet."""
        return epoch > 0 and epoch % self.every == 0

    def __call__(self, model: nn.Module, images: Images, device: str, seed: int) -> Row:
        start = attention_factors(model) or (1.0,) * len(scalable_blocks(model))
        parts = map(images.take, self.search.choose(torch.arange(len(images)), seed))
        batches = ((as_pixels(x.to(device)), y.to(device)) for x, y in parts)
        with eval_mode(model):
            set_attention_factors(model, (1.0,) * len(start))
            try:
                factors = self.search(model, model, batches, seed, start)
            finally:
                set_attention_factors(model, start)
        set_attention_factors(model, factors)
        values = {"largest": max(factors), "middle": statistics.median(factors), "smallest": min(factors)}
        return {"values": values, "factors": list(factors)}

"""Adaptive attention scaling in training (AAS-AT, Jain and Dutta 2024): an event around any objective."""

import torch
from torch import nn

from robustvit.attacks.factor_search import FactorSearch
from robustvit.core.component import settings
from robustvit.core.numbers import Count
from robustvit.core.streams import seeded_subset
from robustvit.data.base import Images, as_pixels
from robustvit.models import eval_mode
from robustvit.models.attention_factors import attention_factors, set_attention_factors
from robustvit.models.attention_probe import attention_blocks


@settings
class AttentionEvent:
    """Before every so many epochs: a search from the factors so far, on training images, which moves no weight.

    The factors found are the model's own from then on: in the attack, the loss, the average and whatever uses it later.
    """

    every: Count = 10
    """Epochs; the paper finds 5 to 40 alike."""
    search: FactorSearch = FactorSearch()

    def is_due(self, epoch: int) -> bool:
        """Whether it comes after so many whole epochs; a model that has learned nothing yet is spared."""
        return epoch > 0 and epoch % self.every == 0

    def __call__(self, model: nn.Module, images: Images, device: str, seed: int) -> tuple[float, ...]:
        """The factors, which the model now has."""
        start = attention_factors(model) or (1.0,) * len(attention_blocks(model))
        count = min(len(images), self.search.batches * self.search.batch_size)
        chosen = seeded_subset(len(images), count, seed, "attention factors")
        batches = (images.take(part) for part in chosen.split(-(-count // self.search.batches)))
        with eval_mode(model):
            set_attention_factors(model, (1.0,) * len(start))
            try:
                found = self.search(
                    model, model, ((as_pixels(x.to(device)), y.to(device)) for x, y in batches), seed, start
                )
            except BaseException:
                set_attention_factors(model, start)
                raise
        set_attention_factors(model, found)
        return found


def check_attention(model: nn.Module) -> None:
    """Told before the training: a model without attention, or one that can't be reached."""
    blocks = attention_blocks(model)
    assert blocks, "or it would have been told"
    with torch.no_grad():
        set_attention_factors(model, (1.0,) * len(blocks))

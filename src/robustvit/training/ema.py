"""An exponential moving average of the weights."""

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import nn

from robustvit.core.component import settings
from robustvit.core.numbers import Number, UnitInterval


@settings
class Ema:
    """Decay 0 during warm-up, then min(decay, (1+d)/(10+d)) at the d-th step after it (Gowal et al. 2020)."""

    decay: Annotated[Number, Field(ge=0, lt=1)] = 0.995
    warmup: UnitInterval = 0.025
    """Fraction of the training."""
    buffers: Literal["copied", "averaged"] = "copied"
    """Running statistics: taken over as they are, or averaged like the weights."""

    def rate(self, step: int, total: int) -> float:
        since = step - int(self.warmup * total)
        return 0.0 if since < 0 else min(self.decay, (1 + since) / (10 + since))

    @torch.no_grad()
    def update(self, average: nn.Module, model: nn.Module, decay: float) -> None:
        for mine, theirs in zip(average.parameters(), model.parameters(), strict=True):
            mine.lerp_(theirs.detach(), 1 - decay)
        for my_buffer, their_buffer in zip(average.buffers(), model.buffers(), strict=True):
            if self.buffers == "averaged" and my_buffer.is_floating_point():
                my_buffer.lerp_(their_buffer, 1 - decay)
            else:
                my_buffer.copy_(their_buffer)

"""How large a model is: parameters and multiply-adds."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from robustvit.models.modes import eval_mode


@dataclass(frozen=True)
class Cost:
    """Multiply-adds of one image's forward pass: matrix products and convolutions, attention's among them."""

    parameters: int
    multiply_adds: int

    def __str__(self) -> str:
        return f"{_short(self.parameters)} parameters, {_short(self.multiply_adds)} multiply-adds an image"


def model_cost(model: nn.Module, img_size: int) -> Cost:
    """Parameters, and multiply-adds of a forward pass of one image."""
    parameter = next(model.parameters())
    image = torch.zeros(1, 3, img_size, img_size, device=parameter.device, dtype=parameter.dtype)
    counter = FlopCounterMode(display=False)
    with eval_mode(model), torch.no_grad(), counter:
        model(image)
    # the counter counts a multiply-add as two
    return Cost(sum(p.numel() for p in model.parameters()), counter.get_total_flops() // 2)


def _short(number: int) -> str:
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.2f} {letter}"
    return str(number)

"""How large a model is: parameters and multiply-adds."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from robustvit.core.numbers import short_count
from robustvit.models.linear import FLOPS
from robustvit.models.modes import eval_mode

_counting = threading.Lock()


@dataclass(frozen=True)
class Cost:
    """Multiply-adds of one image's forward pass: matrix products and convolutions, attention's among them."""

    parameters: int
    multiply_adds: int

    def __str__(self) -> str:
        return f"{short_count(self.parameters)} parameters, {short_count(self.multiply_adds)} multiply-adds an image"


@contextmanager
def counted_operations() -> Iterator[FlopCounterMode]:
    """Counts operations within, attention's as plain matrix products: torch 2.6 overlooks fused attention on the CPU.

    One thread at a time: torch keeps the choice of attention for the whole process, and two threads that restore what
    they found would leave it changed.
    """
    counter = FlopCounterMode(display=False, custom_mapping=FLOPS)
    with _counting, sdpa_kernel(SDPBackend.MATH), counter:
        yield counter


def model_cost(model: nn.Module, img_size: int | tuple[int, int]) -> Cost:
    """Parameters, and multiply-adds of a forward pass of one image."""
    height, width = (img_size, img_size) if isinstance(img_size, int) else img_size
    parameter = next(model.parameters(), torch.zeros(()))
    image = torch.zeros(1, 3, height, width, device=parameter.device, dtype=parameter.dtype)
    with eval_mode(model), torch.no_grad(), counted_operations() as counter:
        model(image)
    # the counter counts a multiply-add as two
    return Cost(num_parameters(model), counter.get_total_flops() // 2)


def num_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def size_facts(model: object, img_size: tuple[int, int]) -> dict[str, int | None]:
    """For a result: `parameters` and `multiply_adds`, None where they can't be counted; nothing of a bare callable."""
    if not isinstance(model, nn.Module):
        return {}
    try:
        multiply_adds = model_cost(model, img_size).multiply_adds
    except Exception:  # whatever a foreign model raises where its operations are counted
        multiply_adds = 0
    return {"parameters": num_parameters(model), "multiply_adds": multiply_adds or None}

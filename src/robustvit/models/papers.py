"""How large a model is, and the papers' models (papers.yaml) with the sizes that the papers print."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from robustvit.core.config import read_yaml, validated
from robustvit.core.numbers import short_count
from robustvit.models.create import ModelSettings
from robustvit.models.modes import eval_mode

NOTES = {
    "": "",
    "without_attention": "printed without the products QK^T and AV",
    "rounded": "printed in whole millions",
    "unexplained": "printed otherwise, for a reason that the paper doesn't give",
}


@dataclass(frozen=True)
class Cost:
    """Multiply-adds of one image's forward pass: matrix products and convolutions, attention's among them."""

    parameters: int
    multiply_adds: int

    def __str__(self) -> str:
        return f"{short_count(self.parameters)} parameters, {short_count(self.multiply_adds)} multiply-adds an image"


@dataclass(frozen=True)
class PaperModel:
    """`parameters` in millions and `multiply_adds` in billions, as printed; None: not printed."""

    title: str
    name: str
    parameters: float | None = None
    multiply_adds: float | None = None
    img_size: int = 224
    patch_size: int | None = None
    num_classes: int = 1000
    settings: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""
    counted: tuple[int, int] = (0, 0)
    """What `count` gave: parameters and multiply-adds."""

    @property
    def cost(self) -> Cost:
        return Cost(*self.counted)

    def count(self) -> Cost:
        """On the meta device, which needs no memory for weights."""
        size = self.img_size if self.patch_size else None
        settings = ModelSettings(self.name, self.num_classes, size, self.patch_size, settings=self.settings)
        with torch.device("meta"):
            return model_cost(settings.build(), self.img_size)


@cache
def paper_models() -> dict[str, tuple[PaperModel, ...]]:
    """By paper."""
    file = Path(__file__).with_suffix(".yaml")
    models: dict[str, tuple[PaperModel, ...]] = validated(dict[str, tuple[PaperModel, ...]], read_yaml(file), str(file))
    return models


def model_cost(model: nn.Module, img_size: int | tuple[int, int]) -> Cost:
    """Parameters, and multiply-adds of a forward pass of one image."""
    height, width = (img_size, img_size) if isinstance(img_size, int) else img_size
    parameter = next(model.parameters(), torch.zeros(()))
    image = torch.zeros(1, 3, height, width, device=parameter.device, dtype=parameter.dtype)
    counter = FlopCounterMode(display=False)
    # the counter of torch 2.6 overlooks fused attention on the CPU
    with eval_mode(model), torch.no_grad(), sdpa_kernel(SDPBackend.MATH), counter:
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

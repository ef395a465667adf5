"""The papers' models (papers.yaml) with the sizes that the papers print."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch

from robustvit.core.config import read_yaml, validated
from robustvit.models.cost import Cost, model_cost
from robustvit.models.create import ModelSettings

NOTES = {
    "": "",
    "without_attention": "printed without the products QK^T and AV",
    "rounded": "printed in whole millions",
    "unexplained": "printed otherwise, for a reason that the paper doesn't give",
}


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

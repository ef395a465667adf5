"""The normalization belongs to the model, so that eps means one thing everywhere."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from robustvit.core.errors import UserError


class Normalized(nn.Module):
    """`backbone((x - mean) / std)`; mean 0 and std 1 leave the pixels as they are."""

    backbone: nn.Module
    mean: Tensor
    std: Tensor

    def __init__(self, backbone: nn.Module, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.backbone = backbone
        # not in the state dict, which keeps the backbone's own keys; they travel in the metadata
        self.register_buffer("mean", _channels(mean, "mean"), persistent=False)
        self.register_buffer("std", _channels(std, "std"), persistent=False)
        if not all(float(value) > 0 for value in std):
            raise UserError(f"std: must be above 0, not {list(std)}")

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.backbone((x - self.mean) / self.std)
        return logits


def backbone_of(model: nn.Module) -> nn.Module:
    """The network itself, whose state dict has the architecture's own names."""
    return model.backbone if isinstance(model, Normalized) else model


def normalized(module: nn.Module, mean: Sequence[float], std: Sequence[float]) -> Normalized:
    """A model of pixels in [0, 1] from one of normalized images."""
    return Normalized(module, mean, std)


def _channels(values: Sequence[float], what: str) -> Tensor:
    numbers = [float(value) for value in values]
    if len(numbers) not in (1, 3):
        raise UserError(f"{what}: one number or three (red, green, blue), not {len(numbers)}")
    return torch.tensor(numbers).view(1, -1, 1, 1)

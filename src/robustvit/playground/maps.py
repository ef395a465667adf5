"""Where a model looks in a picture: attention where it has some, and EigenCAM."""

import numpy as np
import torch
from torch import nn

from robustvit.analysis.attention_maps import attention_to_patches
from robustvit.analysis.eigen_cam import layer_on_grid, maps_of
from robustvit.analysis.pictures import over_image
from robustvit.core.errors import UserError
from robustvit.data.base import as_pixels
from robustvit.models import eval_mode
from robustvit.models.restricted_attention import attention_layouts


def picture_maps(module: nn.Module, pictures: list[np.ndarray]) -> dict[str, list[np.ndarray]]:
    """By title, a (H, W, 3) uint8 picture for each; one without attention, or features on a grid, has fewer."""
    pixels = torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2)
    parameter = next(module.parameters(), None)
    x = as_pixels(pixels).to("cpu" if parameter is None else parameter.device)
    found: dict[str, list[np.ndarray]] = {}
    with eval_mode(module):
        try:
            last, rolled = attention_to_patches(module, x, attention_layouts(module, x))
            found |= {"attention, last block": _shown(x, last), "attention, all blocks": _shown(x, rolled)}
        except UserError:  # windows, channels, or no attention at all
            pass
        try:
            maps, _ = maps_of(module, module, x, layer_on_grid(module, x))
            found["EigenCAM"] = _shown(x, maps)
        except UserError:
            pass
    return found


def _shown(x: torch.Tensor, maps: torch.Tensor) -> list[np.ndarray]:
    levels = np.round(over_image(x, maps).clip(0, 1) * 255).astype(np.uint8)
    return list(levels.transpose(0, 2, 3, 1))

"""Maps over images, as pictures."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from robustvit.reporting.colors import color_table

OPACITY = 0.5
"""Of a map over its image."""


def over_image(x: Tensor, maps: Tensor) -> np.ndarray:
    """(B, 3, H, W) images under (B, h, w) maps, each in colors from its smallest to its largest value."""
    low, high = maps.flatten(1).amin(1), maps.flatten(1).amax(1)
    scaled = (maps - low[:, None, None]) / (high - low).clamp_min(1e-30)[:, None, None]
    large = F.interpolate(scaled[:, None].float(), x.shape[2:], mode="bilinear", align_corners=False)[:, 0]
    table = torch.from_numpy(color_table("sequential").astype(np.float32) / 255)  # (256, 3)
    colors = table[(large.clamp(0, 1) * (len(table) - 1)).round().long().cpu()].permute(0, 3, 1, 2)
    mixed: np.ndarray = ((1 - OPACITY) * x.float().cpu() + OPACITY * colors).numpy()
    return mixed

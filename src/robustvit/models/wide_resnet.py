"""Residual networks for small images that timm doesn't have."""

from collections.abc import Sequence
from typing import Any

import torch.nn.functional as F
from timm.layers import create_act_layer
from torch import Tensor, nn


class _PreActivation(nn.Module):
    """Groups of so many blocks, behind a 3x3 stem; `widths` are the stem's and each group's."""

    def __init__(
        self,
        counts: Sequence[int],
        widths: Sequence[int],
        num_classes: int = 10,
        in_chans: int = 3,
        act_layer: str = "relu",
        drop_rate: float = 0.0,
        same_padding: bool = False,
    ) -> None:
        super().__init__()
        self.num_classes, self.drop_rate, self.same_padding = num_classes, drop_rate, same_padding
        self.conv1 = nn.Conv2d(in_chans, widths[0], 3, padding=1, bias=False)
        self.groups = nn.ModuleList()
        for i, (count, width_in, width) in enumerate(zip(counts, widths, widths[1:], strict=False)):
            shapes = [(width_in, width, 1 if i == 0 else 2), *[(width, width, 1)] * (count - 1)]
            self.groups.append(nn.Sequential(*(_Block(*shape, act_layer, same_padding) for shape in shapes)))
        self.norm = nn.BatchNorm2d(widths[-1])
        self.act = create_act_layer(act_layer)
        self.num_features = widths[-1]
        self.fc = nn.Linear(widths[-1], num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        nn.init.zeros_(self.fc.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv1(x)
        for group in self.groups:
            x = group(x)
        pooled = self.act(self.norm(x)).mean((2, 3))
        logits: Tensor = self.fc(F.dropout(pooled, self.drop_rate, self.training))
        return logits


class WideResNet(_PreActivation):
    """Zagoruyko and Komodakis 2016: three groups of (depth - 4) / 6 blocks, 16, 32 and 64 times `width` channels wide.

    With `act_layer: silu` the one of Gowal et al. 2020 and Wang et al. 2023; their published weights need
    `same_padding` too: convolutions of stride 2 pad on the right and below alone.
    """

    def __init__(self, depth: int = 28, width: int = 10, **kwargs: Any) -> None:
        blocks, rest = divmod(depth - 4, 6)
        if blocks < 1 or rest:
            raise ValueError(f"a WideResNet's depth is 6 n + 4, such as 28 or 34, not {depth}")
        super().__init__([blocks] * 3, [16, 16 * width, 32 * width, 64 * width], **kwargs)


class PreActResNet(_PreActivation):
    """He et al. 2016b with a 3x3 stem, as CIFAR robustness papers use it: four groups of `blocks`, 64 to 512 wide."""

    def __init__(self, blocks: tuple[int, ...] = (2, 2, 2, 2), **kwargs: Any) -> None:
        super().__init__(blocks, [64, *(64 << i for i in range(len(blocks)))], **kwargs)


class _Block(nn.Module):
    """norm, act, conv, norm, act, conv; a change of width goes through a 1x1 convolution of the activated input."""

    def __init__(self, width_in: int, width_out: int, stride: int, act_layer: str, same_padding: bool) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(width_in)
        self.act1 = create_act_layer(act_layer)
        self.pads_one_side = same_padding and stride == 2
        self.conv1 = nn.Conv2d(width_in, width_out, 3, stride, 0 if self.pads_one_side else 1, bias=False)
        self.norm2 = nn.BatchNorm2d(width_out)
        self.act2 = create_act_layer(act_layer)
        self.conv2 = nn.Conv2d(width_out, width_out, 3, padding=1, bias=False)
        same = width_in == width_out and stride == 1
        self.shortcut = None if same else nn.Conv2d(width_in, width_out, 1, stride=stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        active = self.act1(self.norm1(x))
        padded = F.pad(active, (0, 1, 0, 1)) if self.pads_one_side else active
        branch: Tensor = self.conv2(self.act2(self.norm2(self.conv1(padded))))
        return branch + (x if self.shortcut is None else self.shortcut(active))

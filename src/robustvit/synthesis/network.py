"""The DDPM++ U-Net (Song et al. 2021) as EDM uses it, with the parameter names of the published checkpoints."""

import math
from typing import Annotated, Protocol

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from robustvit.core.component import OneOf, component
from robustvit.core.errors import UserError
from robustvit.core.numbers import Count, UnitInterval

_SKIP_SCALE = math.sqrt(0.5)
_ALMOST_ZERO = 1e-5
"""Gain of the last layer of each residual branch at the start, so that a new block is almost the identity."""


class Network(Protocol):
    """A component of the kind `network`."""

    def build(self, img_size: int, num_classes: int, augment_labels: int) -> nn.Module:
        """A module of (x, noise level (B,), one-hot labels (B, K), augmentation labels or None) -> as x."""


AnyNetwork = Annotated[Network, OneOf("network")]


@component("network", "ddpmpp")
class DdpmPlusPlus:
    """DDPM++ of Karras et al. 2022; its defaults are their network for CIFAR-10 with 55.7 M parameters."""

    channels: Annotated[int, Field(ge=8, le=4096, multiple_of=8)] = 128
    """Of a level, times `multipliers`."""
    multipliers: Annotated[tuple[Count, ...], Field(min_length=1, max_length=8)] = (2, 2, 2)
    """Of each level; every level but the first has half the resolution of the one before."""
    blocks: Annotated[int, Field(ge=1, le=64)] = 4
    """Residual blocks of a level on the way down; one more on the way up."""
    attention: tuple[Count, ...] = (16,)
    """Resolutions whose blocks have self-attention; on the way up only the last block of a level."""
    dropout: UnitInterval = 0.13
    """In every block; Karras et al. use 0.13 on CIFAR-10."""

    def build(self, img_size: int, num_classes: int, augment_labels: int) -> "UNet":
        smallest = 2 ** (len(self.multipliers) - 1)
        if img_size % smallest:
            levels = f"{len(self.multipliers)} levels halve it {len(self.multipliers) - 1} times"
            raise UserError(f"recipe.network.multipliers: {levels}, which images of {img_size} pixels do not allow")
        return UNet(self, img_size, num_classes, augment_labels)


class UNet(nn.Module):
    """Encoder and decoder with a skip connection from every block."""

    def __init__(self, settings: DdpmPlusPlus, img_size: int, num_classes: int, augment_labels: int) -> None:
        super().__init__()
        base = settings.channels
        embedding = 4 * base
        self.map_label = nn.Linear(num_classes, base)
        self.map_augment = nn.Linear(augment_labels, base, bias=False) if augment_labels else None
        self.map_layer0 = nn.Linear(base, embedding)
        self.map_layer1 = nn.Linear(embedding, embedding)

        def block(inputs: int, outputs: int, *, attention: bool = False, resample: str = "") -> Block:
            return Block(inputs, outputs, embedding, settings.dropout, attention, resample)

        widths = [base * multiplier for multiplier in settings.multipliers]
        sizes = [img_size >> level for level in range(len(widths))]
        self.enc, self.dec = nn.ModuleDict(), nn.ModuleDict()
        self.enc[f"{img_size}x{img_size}_conv"] = nn.Conv2d(3, base, 3, padding=1)
        channels, skips = base, [base]
        for level, (width, size) in enumerate(zip(widths, sizes, strict=True)):
            if level:
                self.enc[f"{size}x{size}_down"] = block(channels, channels, resample="down")
                skips.append(channels)
            for number in range(settings.blocks):
                attends = size in settings.attention
                self.enc[f"{size}x{size}_block{number}"] = block(channels, width, attention=attends)
                channels = width
                skips.append(channels)
        for level, (width, size) in reversed(list(enumerate(zip(widths, sizes, strict=True)))):
            if level == len(widths) - 1:
                self.dec[f"{size}x{size}_in0"] = block(channels, channels, attention=True)
                self.dec[f"{size}x{size}_in1"] = block(channels, channels)
            else:
                self.dec[f"{size}x{size}_up"] = block(channels, channels, resample="up")
            for number in range(settings.blocks + 1):
                attends = number == settings.blocks and size in settings.attention
                self.dec[f"{size}x{size}_block{number}"] = block(channels + skips.pop(), width, attention=attends)
                channels = width
        self.dec[f"{img_size}x{img_size}_aux_norm"] = _group_norm(channels)
        self.dec[f"{img_size}x{img_size}_aux_conv"] = nn.Conv2d(channels, 3, 3, padding=1)
        self.apply(_initialize)
        _scale(self.dec[f"{img_size}x{img_size}_aux_conv"], _ALMOST_ZERO)
        for module in self.modules():
            if isinstance(module, Block):
                module.scale_branches()

    def forward(self, x: Tensor, noise: Tensor, labels: Tensor, augment_labels: Tensor | None = None) -> Tensor:
        embedded = positional_embedding(noise, self.map_layer0.in_features)
        embedded = embedded + self.map_label(labels * math.sqrt(labels.shape[1]))
        if self.map_augment is not None and augment_labels is not None:
            embedded = embedded + self.map_augment(augment_labels)
        embedded = F.silu(self.map_layer1(F.silu(self.map_layer0(embedded))))
        skips = []
        for layer in self.enc.values():
            x = layer(x, embedded) if isinstance(layer, Block) else layer(x)
            skips.append(x)
        for name, layer in self.dec.items():
            if isinstance(layer, Block):
                x = layer(torch.cat([x, skips.pop()], 1) if "_block" in name else x, embedded)
            else:
                x = layer(F.silu(x)) if name.endswith("_conv") else layer(x)
        return x


class Block(nn.Module):
    """Two convolutions with the embedding added between them, then attention; each sum is scaled by sqrt(1/2)."""

    def __init__(
        self, inputs: int, outputs: int, embedding: int, dropout: float, attention: bool, resample: str
    ) -> None:
        super().__init__()
        self.resample = resample
        self.norm0 = _group_norm(inputs)
        self.conv0 = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.affine = nn.Linear(embedding, outputs)
        self.norm1 = _group_norm(outputs)
        self.dropout = nn.Dropout(dropout)
        self.conv1 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.skip = nn.Conv2d(inputs, outputs, 1) if resample or inputs != outputs else None
        self.norm2 = _group_norm(outputs) if attention else None
        if attention:
            self.qkv = nn.Conv2d(outputs, 3 * outputs, 1)
            self.proj = nn.Conv2d(outputs, outputs, 1)

    def scale_branches(self) -> None:
        _scale(self.conv1, _ALMOST_ZERO)
        if self.norm2 is not None:
            _scale(self.qkv, math.sqrt(0.2))
            _scale(self.proj, _ALMOST_ZERO)

    def forward(self, x: Tensor, embedded: Tensor) -> Tensor:
        h = self.conv0(self._resampled(F.silu(self.norm0(x))))
        h = F.silu(self.norm1(h + self.affine(embedded)[:, :, None, None]))
        h = self.conv1(self.dropout(h))
        x = (h + (x if self.skip is None else self.skip(self._resampled(x)))) * _SKIP_SCALE
        return x if self.norm2 is None else (x + self._attended(self.norm2(x))) * _SKIP_SCALE

    def _attended(self, x: Tensor) -> Tensor:
        """One head over all places; q, k and v of a channel are neighbors in the published weights."""
        q, k, v = self.qkv(x).reshape(len(x), x.shape[1], 3, -1).permute(2, 0, 3, 1)  # (B, places, C) each
        mixed: Tensor = self.proj(F.scaled_dot_product_attention(q, k, v).mT.reshape(x.shape))
        return mixed

    def _resampled(self, x: Tensor) -> Tensor:
        """By the box filter of DDPM++."""
        if self.resample == "down":
            return F.avg_pool2d(x, 2)
        return F.interpolate(x, scale_factor=2.0, mode="nearest") if self.resample == "up" else x


def positional_embedding(noise: Tensor, channels: int) -> Tensor:
    """(B, channels): sines, then cosines, of frequencies from 1 down to 1/10,000."""
    half = channels // 2
    powers = torch.arange(half, dtype=torch.float32, device=noise.device) / (half - 1)
    angles = noise[:, None] * ((1 / 10000) ** powers).to(noise.dtype)
    return torch.cat([angles.sin(), angles.cos()], 1)


def _group_norm(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(min(32, channels // 4), channels, eps=1e-6)


def _initialize(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Conv2d):
        nn.init.xavier_uniform_(module.weight)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def _scale(module: nn.Module, gain: float) -> None:
    assert isinstance(module, nn.Conv2d)
    with torch.no_grad():
        module.weight.mul_(gain)

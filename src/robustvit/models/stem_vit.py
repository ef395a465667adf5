"""A vision transformer whose pass is cheap on small images."""

from functools import partial
from typing import Any, Literal

import torch
from timm.models.swin_transformer import PatchMerging
from timm.models.vision_transformer import Block, VisionTransformer
from torch import Tensor, _assert, nn


class StemViT(VisionTransformer):
    """timm's ViT behind a stem of convolutions, a few blocks of finer tokens, and a merge of each 2x2 of them.

    At 32 pixels the stem makes 64 tokens and the trunk sees 16, each of 8x8 pixels: most of the pass is spent where
    tokens are few. `residual` adds that many residual blocks of two convolutions after each convolution of the stem.
    Blocks, class token, pooling and head are timm's, so whatever reads a ViT reads this one.
    """

    def __init__(
        self,
        img_size: int = 32,
        stem_width: int = 32,
        residual: tuple[int, int] = (0, 0),
        early_dim: int = 96,
        early_depth: int = 1,
        embed_dim: int = 192,
        depth: int = 4,
        num_heads: int = 6,
        mlp_ratio: float = 2.0,
        init_values: float | None = 0.3,
        class_token: bool = False,
        global_pool: Literal["", "avg", "avgmax", "max", "token", "map"] = "avg",
        **kwargs: Any,
    ) -> None:
        if len(residual) != 2 or min(*residual, early_depth) < 0:
            raise ValueError("residual and early_depth: two numbers of blocks and one, none below 0")
        if "patch_size" in kwargs:
            raise ValueError("patch_size: its tokens have 8 pixels; the stem makes them")
        heads = max(1, early_dim * num_heads // embed_dim)  # as wide as those of the trunk
        block = partial(
            Block, early_dim, heads, mlp_ratio=mlp_ratio, qkv_bias=kwargs.get("qkv_bias", True), init_values=init_values
        )
        super().__init__(
            img_size=img_size,
            patch_size=8,
            embed_layer=partial(
                _Stem, width=stem_width, dim=early_dim, residual=residual, blocks=[block] * early_depth
            ),
            embed_dim=embed_dim,
            depth=depth,
            num_heads=num_heads,
            mlp_ratio=mlp_ratio,
            init_values=init_values,
            class_token=class_token,
            global_pool=global_pool,
            **kwargs,
        )
        if isinstance(self.head, nn.Linear):
            nn.init.zeros_(self.head.weight)  # the first steps then train the head alone, whatever the learning rate


class _Stem(nn.Module):
    """(B, C, H, W) to (B, N, embed_dim), one token for each 8x8 pixels."""

    first_layer = "conv1"
    """What stays in float32 where the model computes in bfloat16; the rest costs a third of the pass."""

    def __init__(
        self,
        img_size: int,
        patch_size: int,
        in_chans: int,
        embed_dim: int,
        width: int,
        dim: int,
        residual: tuple[int, int],
        blocks: list[Any],
        bias: bool = True,
        **ignored: Any,
    ) -> None:
        super().__init__()
        if img_size % patch_size:
            raise ValueError(f"its tokens of {patch_size} pixels don't divide an image of {img_size}")
        self.img_size = (img_size, img_size)
        self.patch_size = (patch_size, patch_size)
        self.grid_size = (img_size // patch_size, img_size // patch_size)
        self.num_patches = self.grid_size[0] * self.grid_size[1]
        self.conv1 = nn.Conv2d(in_chans, width, 3, stride=2, padding=1)
        self.norm = nn.GroupNorm(1, width)
        self.act = nn.GELU()
        self.residual1 = nn.Sequential(*(_Residual(width) for _ in range(residual[0])))
        self.conv2 = nn.Conv2d(width, dim, 3, stride=2, padding=1)
        self.residual2 = nn.Sequential(*(_Residual(dim) for _ in range(residual[1])))
        self.pos_embed = nn.Parameter(torch.randn(1, 4 * self.num_patches, dim) * 0.02)
        self.blocks = nn.Sequential(*(block() for block in blocks))
        self.merge = PatchMerging(dim, embed_dim)

    def forward(self, x: Tensor) -> Tensor:
        shown = " x ".join(map(str, x.shape[2:]))
        _assert(x.shape[2:] == self.img_size, f"images of {shown} pixels, where the model takes {self.img_size[0]}")
        x = self.residual1(self.act(self.norm(self.conv1(x))))
        x = self.residual2(self.conv2(x))
        height, width = x.shape[2:]
        x = self.blocks(x.flatten(2).transpose(1, 2) + self.pos_embed)
        merged: Tensor = self.merge(x.reshape(len(x), height, width, -1))
        return merged.flatten(1, 2)


class _Residual(nn.Module):
    """Normalized over the whole image, not over a batch, so that no image depends on its neighbors."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(1, width)
        self.conv1 = nn.Conv2d(width, width, 3, padding=1)
        self.act = nn.GELU()
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        added: Tensor = self.conv2(self.act(self.conv1(self.norm(x))))
        return x + added

"""Models made for 224 px on 32: how coarse the first layer cuts an image, one function a family.

Families that take `patch_size` themselves (ViT, DeiT, CaiT, Swin, ConvNeXt) need none.
"""

from collections.abc import Callable
from typing import Any

from torch import nn

from robustvit.core.errors import UserError


def xcit_patch(backbone: Any, patch_size: int) -> None:
    """The first of the stem's stride-2 convolutions get stride 1 (A Light Recipe, appendix D); shapes stay, so that
    weights trained at 224 px fit."""
    convolutions: list[Any] = [layer[0] for layer in backbone.patch_embed.proj if isinstance(layer, nn.Sequential)]
    kept = patch_size.bit_length() - 1
    if 1 << kept != patch_size or kept > len(convolutions):
        coarsest = 1 << len(convolutions)
        raise UserError(f"patch_size: this XCiT cuts patches of 1, 2, 4 ... {coarsest} pixels, not {patch_size}")
    for number, convolution in enumerate(convolutions):
        convolution.stride = (2, 2) if number >= len(convolutions) - kept else (1, 1)
    height, width = backbone.patch_embed.img_size
    backbone.patch_embed.patch_size = patch_size
    backbone.patch_embed.num_patches = (height // patch_size) * (width // patch_size)
    backbone.feature_info = [{**info, "reduction": patch_size} for info in backbone.feature_info]


def resnet_stem(backbone: Any, patch_size: int) -> None:
    """A 3x3 convolution of stride 1 in place of 7x7 of stride 2, and no pooling (A Light Recipe, appendix D)."""
    if not isinstance(backbone.conv1, nn.Conv2d):
        raise UserError("patch_size: this ResNet has a stem of several convolutions, with no 3x3 form; leave it out")
    if patch_size != 1:
        raise UserError(f"patch_size: a ResNet takes 1 (3x3 stem, no pooling) or nothing, not {patch_size}")
    old = backbone.conv1
    backbone.conv1 = nn.Conv2d(old.in_channels, old.out_channels, 3, padding=1, bias=old.bias is not None)
    nn.init.kaiming_normal_(backbone.conv1.weight, mode="fan_out", nonlinearity="relu")
    backbone.maxpool = nn.Identity()


ADAPTED: dict[str, Callable[[Any, int], None]] = {"Xcit": xcit_patch, "ResNet": resnet_stem}
"""By the class of the timm model."""

"""A vision transformer with modules after its blocks and further heads; its own weights are below `vit.`."""

import copy
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Protocol

import torch
from torch import Tensor, nn

from robustvit.core.component import OneOf
from robustvit.core.errors import UserError

JOINT = "joint"
"""The mean of all heads, which is the output of the model."""


class Adapters(Protocol):
    """A component of the kind "adapters"."""

    def adapt(self, vit: nn.Module) -> "AdaptedViT":
        """The network with adapters, whose joint output is that of the given one until it is trained."""


AnyAdapters = Annotated[Adapters, OneOf("adapters")]


class AdaptedViT(nn.Module):
    """After each block an adapter layer changes the tokens; each head reads a token of its own.

    A layer returns the tokens of the next block, and those that the heads would read there (B, heads, dim). Without
    layers all heads read the class token.
    """

    added_parameters = ("adapters.*", "heads.*")
    """Not in the file of the weights that the network starts from."""

    def __init__(self, vit: nn.Module, layers: Sequence[nn.Module], heads: Sequence[str]) -> None:
        super().__init__()
        self.vit: Any
        self.vit = vit
        self.adapters = nn.ModuleList(layers)
        head: nn.Module = self.vit.head
        self.heads = nn.ModuleDict({name: copy.deepcopy(head) for name in heads})

    @property
    def head_names(self) -> tuple[str, ...]:
        """The first is the output of the model."""
        return tuple(dict.fromkeys((JOINT, *self.heads)))

    @property
    def copied_parameters(self) -> dict[str, str]:
        """Parameters that begin as copies of others: heads as the pretrained one."""
        tensors = [name for name, _ in self.vit.head.named_parameters()]
        return {f"heads.{head}.{name}": f"vit.head.{name}" for head in self.heads for name in tensors}

    @property
    def num_classes(self) -> int:
        return int(self.vit.num_classes)

    @property
    def pretrained_cfg(self) -> Mapping[str, Any]:
        return getattr(self.vit, "pretrained_cfg", None) or {}

    @property
    def num_prefix_tokens(self) -> int:
        return int(self.vit.num_prefix_tokens)

    @property
    def patch_embed(self) -> nn.Module:
        embed: nn.Module = self.vit.patch_embed
        return embed

    def forward(self, x: Tensor, head: str = JOINT) -> Tensor:
        features = self.vit.norm(self._tokens(x))  # (B, heads, dim)
        features = self.vit.head_drop(self.vit.fc_norm(features))
        wanted = list(self.heads) if head == JOINT else [head]
        logits = [self.heads[name](features[:, list(self.heads).index(name)]) for name in wanted]
        return torch.stack(logits).mean(0)

    def _tokens(self, x: Tensor) -> Tensor:
        """(B, heads, dim) what the heads read, before the last norm."""
        vit = self.vit
        z: Tensor = vit.norm_pre(vit.patch_drop(vit._pos_embed(vit.patch_embed(x))))
        tokens: Tensor | None = None
        for number, block in enumerate(vit.blocks):
            z = block(z)
            if len(self.adapters):
                z, tokens = self.adapters[number](z)
        return z[:, :1].expand(-1, len(self.heads), -1) if tokens is None else tokens


class Adapter(nn.Module):
    """z + up(GELU(down(z))); zero at first, so that it changes nothing (Houlsby et al. 2019)."""

    def __init__(self, dim: int, bottleneck: int) -> None:
        super().__init__()
        self.down = nn.Linear(dim, bottleneck)
        self.act = nn.GELU()
        self.up = nn.Linear(bottleneck, dim)
        nn.init.zeros_(self.up.weight)
        nn.init.zeros_(self.up.bias)

    def forward(self, z: Tensor) -> Tensor:
        changed: Tensor = z + self.up(self.act(self.down(z)))
        return changed


def check_backbone(vit: Any) -> None:
    """A UserError unless it is a timm VisionTransformer, or computes as one, whose head reads the class token."""
    from timm.models.vision_transformer import VisionTransformer

    name, needs = type(vit).__name__, "model.adapters: they need a timm VisionTransformer"
    methods = ("forward", "forward_features", "forward_head")
    if not isinstance(vit, VisionTransformer):
        raise UserError(f"{needs} with a class token, such as vit_base_patch16_224, not a {name}")
    if any(getattr(type(vit), method) is not getattr(VisionTransformer, method) for method in methods):
        raise UserError(f"{needs}, whose forward pass {name} changes; take one such as vit_base_patch16_224")
    if vit.cls_token is None or vit.global_pool != "token":
        raise UserError(
            f"{needs} whose head reads a class token; this {name} has "
            f"{'none' if vit.cls_token is None else f'one, but its head pools by {vit.global_pool!r}'}: set "
            "model.settings.class_token: true and model.settings.global_pool: token, or take another model"
        )


def default_bottleneck(dim: int, bottleneck: int | None) -> int:
    """A sixteenth of the width, as in TORA-ViT, unless one is given."""
    return bottleneck if bottleneck is not None else max(1, dim // 16)

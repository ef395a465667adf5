"""TORA-ViT: an accuracy and a robustness adapter after every block, mixed by a gate; its baselines leave parts out.

Trade-off between Robustness and Accuracy of Vision Transformers (Li and Xu). What the paper doesn't print is a setting.
"""

import math
from typing import Any, Literal

import torch
from torch import Tensor, nn

from robustvit.core.component import component
from robustvit.core.numbers import Count
from robustvit.models.adapters.base import JOINT, AdaptedViT, Adapter, check_backbone, default_bottleneck

HEADS = ("acc", "rob")
Softmax = Literal["adapter", "per_token", "token", "all"]


@component("adapters", "tora")
class Tora:
    """Two adapters after each block, mixed by a gate; heads `acc`, `rob` and their mean `joint` (Li and Xu)."""

    bottleneck: Count | None = None
    """Width inside an adapter; null: a sixteenth of the model's."""
    softmax: Softmax = "adapter"
    """What the scores of queries and tokens compete with: the other adapter's score of the same pair (TORA-ViT), the
    other adapter at the same token alone (`per_token`, AdapterFusion), the same adapter's other tokens, or all."""
    gate_scale: Literal["count", "root", "none"] = "root"
    """What the sum over tokens is divided by with `softmax: adapter`: their number, its root, or nothing."""
    value_init: Literal["zero", "identity"] = "zero"
    """Of the value projection; with zero the joint output begins as the backbone's, bit for bit."""
    tokens: Literal["branch", "bare"] = "branch"
    """[ACC] and [ROB]: the class token and what each adapter adds to it, or the latter alone."""
    form: Literal["short", "literal"] = "short"
    """How `adapter` and `per_token` are computed: a softmax of two as a sigmoid of their difference, or as written; the
    results are equal."""

    def __post_init__(self) -> None:
        if self.softmax != "adapter" and self.gate_scale != "root":
            raise ValueError(f"gate_scale: only softmax: adapter is scaled, not {self.softmax}; leave it out")

    def adapt(self, vit: Any) -> AdaptedViT:
        check_backbone(vit)
        dim = vit.embed_dim
        width = default_bottleneck(dim, self.bottleneck)
        layers = [
            ToraLayer(Adapter(dim, width), Adapter(dim, width), GatedFusion(dim, self), self.tokens == "branch")
            for _ in vit.blocks
        ]
        return AdaptedViT(vit, layers, HEADS)


@component("adapters", "single")
class Single:
    """One adapter after each block and one head: the baseline "single adapter" of TORA-ViT."""

    bottleneck: Count | None = None
    """Width inside an adapter; null: a sixteenth of the model's."""

    def adapt(self, vit: Any) -> AdaptedViT:
        check_backbone(vit)
        dim = vit.embed_dim
        width = default_bottleneck(dim, self.bottleneck)
        return AdaptedViT(vit, [SingleLayer(Adapter(dim, width)) for _ in vit.blocks], (JOINT,))


@component("adapters", "heads")
class Heads:
    """Two heads on the class token of the backbone as it is: the baseline "head only" of TORA-ViT."""

    def adapt(self, vit: Any) -> AdaptedViT:
        check_backbone(vit)
        return AdaptedViT(vit, (), HEADS)


class SingleLayer(nn.Module):
    def __init__(self, adapter: Adapter) -> None:
        super().__init__()
        self.adapter = adapter

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        z = self.adapter(z)
        return z, z[:, :1]


class ToraLayer(nn.Module):
    """Returns the tokens of the next block, whose first is the mean of [ACC] and [ROB], and these two."""

    def __init__(self, acc: Adapter, rob: Adapter, fusion: "GatedFusion", keeps_class_token: bool) -> None:
        super().__init__()
        self.acc, self.rob, self.fusion = acc, rob, fusion
        self.keeps_class_token = keeps_class_token

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        added, of_each = self.fusion(z, self.acc(z), self.rob(z))
        if self.keeps_class_token:
            return z + added, z[:, :1] + 2 * of_each
        return torch.cat([added[:, :1], z[:, 1:] + added[:, 1:]], 1), 2 * of_each


class GatedFusion(nn.Module):
    """(z, a, r) -> what both adapters add to all tokens (B, N, dim), and what each adds to the first (B, 2, dim)."""

    not_attention = True
    """Its softmax, if it has one, is a gate; the attention probe looks for that of the blocks."""

    def __init__(self, dim: int, settings: Tora) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(dim, dim) for _ in range(3))
        self.softmax = settings.softmax
        self.gate_scale = settings.gate_scale if settings.softmax == "adapter" else "none"
        self.is_short = settings.form == "short" and settings.softmax in ("adapter", "per_token")
        initialize = nn.init.zeros_ if settings.value_init == "zero" else nn.init.eye_
        initialize(self.value.weight)
        nn.init.zeros_(self.value.bias)

    def extra_repr(self) -> str:
        return f"softmax={self.softmax}, gate_scale={self.gate_scale}, is_short={self.is_short}"

    def forward(self, z: Tensor, a: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
        if self.is_short:
            return self._short(z, a, r)
        gates = self.gates(z, a, r) / self._scale(z)
        acc, rob = self._mixed(gates[0], self.value(a)), self._mixed(gates[1], self.value(r))
        return acc + rob, torch.cat([acc[:, :1], rob[:, :1]], 1)

    def gates(self, z: Tensor, a: Tensor, r: Tensor) -> Tensor:
        """(2, B, queries, tokens): how much each query takes of each adapter's tokens; one column with `per_token`."""
        queries = self._queries(z)
        scores = torch.stack([self._scores(queries, self.key(features)) for features in (a, r)])
        if self.softmax in ("adapter", "per_token"):
            return scores.softmax(0)
        if self.softmax == "token":
            return scores.softmax(-1) / 2  # those of a query sum to 1, as with `all`
        both = torch.cat([scores[0], scores[1]], -1).softmax(-1)
        return torch.stack(both.chunk(2, -1))

    def _short(self, z: Tensor, a: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
        """A softmax of two is a sigmoid of their difference, in which the bias of the key cancels."""
        difference = nn.functional.linear(a - r, self.key.weight)
        gate = self._scores(self._queries(z), difference).sigmoid()
        values_a, values_r = self.value(a), self.value(r)
        all_r = values_r if self.softmax == "per_token" else values_r.sum(1, keepdim=True)
        scale = self._scale(z)
        added = (self._mixed(gate, values_a - values_r) + all_r) / scale
        first = gate[:, :1] * values_a[:, :1] if self.softmax == "per_token" else gate[:, :1] @ values_a
        acc = first / scale
        return added, torch.cat([acc, added[:, :1] - acc], 1)

    def _queries(self, z: Tensor) -> Tensor:
        queries: Tensor = self.query(z) * z.shape[-1] ** -0.5
        return queries

    def _scores(self, queries: Tensor, keys: Tensor) -> Tensor:
        if self.softmax == "per_token":
            return (queries * keys).sum(-1, keepdim=True)  # (B, N, 1)
        return queries @ keys.mT  # (B, N, N)

    def _mixed(self, gate: Tensor, values: Tensor) -> Tensor:
        return gate * values if self.softmax == "per_token" else gate @ values

    def _scale(self, z: Tensor) -> float:
        tokens = float(z.shape[1])
        return {"count": tokens, "root": math.sqrt(tokens), "none": 1.0}[self.gate_scale]

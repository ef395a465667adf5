"""How the JAX code bases name the arrays of a ViT, and where timm keeps each of them."""

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from robustvit.core.errors import UserError

HEAD_WITH_TANH, SCENIC_HEAD = "pre_logits/", "output_projection/"
_EMBEDDING = "embedding/kernel"
_NAMES = {
    r"^Transformer/(posembed_input/)?pos_embedding$": "pos_embedding",  # vision_transformer, scenic; before 2022
    rf"^{SCENIC_HEAD}": "head/",
    r"^(?=(probe$|MlpBlock_|MultiHeadDotProductAttention_|LayerNorm_))": "MAPHead_0/",  # of ViT-G, without a module
    r"/MultiHeadDotProductAttention_\d/": "/MultiHeadDotProductAttention_0/",  # the old flax counted over all
    r"/MlpBlock_\d/": "/MlpBlock_0/",
    r"/LayerNorm_2/": "/LayerNorm_1/",
}
"""What others write, in big_vision's words."""
_SCANNED = "Transformer/encoderblock/"
LONGEST_NAME, MOST_BLOCKS = 200, 1000
"""Beyond any ViT: a file may name and hold anything."""


class Slot(NamedTuple):
    """A leaf in big_vision's name, and the tensor of timm that it is, or a part of."""

    leaf: str
    tensor: str
    kind: str = "plain"
    """Of its layout: plain, dense, patches, into_heads, head_bias, from_heads."""
    part: int = 0
    parts: int = 1
    """Of the tensor's rows: queries, keys and values lie in one."""

    def to_timm(self, leaf: np.ndarray) -> np.ndarray:
        match self.kind:
            case "dense":  # (in, out)
                return leaf.T
            case "patches":  # (height, width, in, out)
                return leaf.transpose(3, 2, 0, 1)
            case "into_heads":  # (in, heads, out of a head)
                return leaf.reshape(len(leaf), -1).T
            case "from_heads":  # (heads, in of a head, out)
                return leaf.reshape(-1, leaf.shape[-1]).T
            case "head_bias":  # (heads, out of a head)
                return leaf.reshape(-1)
        return leaf

    def to_jax(self, tensor: np.ndarray, heads: int) -> np.ndarray:
        part = np.split(tensor, self.parts)[self.part]
        match self.kind:
            case "dense":
                return part.T
            case "patches":
                return part.transpose(2, 3, 1, 0)
            case "into_heads":
                return part.T.reshape(part.shape[1], heads, -1)
            case "from_heads":
                return part.T.reshape(heads, -1, part.shape[0])
            case "head_bias":
                return part.reshape(heads, -1)
        return part


def slots(depth: int, has_class_token: bool, has_map_head: bool) -> Iterator[Slot]:
    """Every leaf of such a ViT."""
    yield Slot("embedding/kernel", "patch_embed.proj.weight", "patches")
    yield Slot("embedding/bias", "patch_embed.proj.bias")
    yield Slot("pos_embedding", "pos_embed")
    if has_class_token:
        yield Slot("cls", "cls_token")
    for block in range(depth):
        theirs, ours = f"Transformer/encoderblock_{block}", f"blocks.{block}"
        yield from _norm(f"{theirs}/LayerNorm_0", f"{ours}.norm1")
        yield from _attention(
            theirs, f"{ours}.attn", {"query": ("qkv", 0, 3), "key": ("qkv", 1, 3), "value": ("qkv", 2, 3)}
        )
        yield from _norm(f"{theirs}/LayerNorm_1", f"{ours}.norm2")
        yield from _mlp(theirs, f"{ours}.mlp")
    yield from _norm("Transformer/encoder_norm", "norm")
    if has_map_head:
        yield Slot("MAPHead_0/probe", "attn_pool.latent")
        yield from _attention(
            "MAPHead_0", "attn_pool", {"query": ("q", 0, 1), "key": ("kv", 0, 2), "value": ("kv", 1, 2)}
        )
        yield from _norm("MAPHead_0/LayerNorm_0", "attn_pool.norm")
        yield from _mlp("MAPHead_0", "attn_pool.mlp")
    yield from _dense("head", "head")


def _norm(theirs: str, ours: str) -> list[Slot]:
    return [Slot(f"{theirs}/scale", f"{ours}.weight"), Slot(f"{theirs}/bias", f"{ours}.bias")]


def _dense(theirs: str, ours: str) -> list[Slot]:
    return [Slot(f"{theirs}/kernel", f"{ours}.weight", "dense"), Slot(f"{theirs}/bias", f"{ours}.bias")]


def _mlp(theirs: str, ours: str) -> list[Slot]:
    return [slot for i in (0, 1) for slot in _dense(f"{theirs}/MlpBlock_0/Dense_{i}", f"{ours}.fc{i + 1}")]


def _attention(theirs: str, ours: str, places: Mapping[str, tuple[str, int, int]]) -> Iterator[Slot]:
    theirs = f"{theirs}/MultiHeadDotProductAttention_0"
    for name, (layer, part, parts) in places.items():
        yield Slot(f"{theirs}/{name}/kernel", f"{ours}.{layer}.weight", "into_heads", part, parts)
        yield Slot(f"{theirs}/{name}/bias", f"{ours}.{layer}.bias", "head_bias", part, parts)
    yield Slot(f"{theirs}/out/kernel", f"{ours}.proj.weight", "from_heads")
    yield Slot(f"{theirs}/out/bias", f"{ours}.proj.bias")


class Leaf(NamedTuple):
    name: str
    """In the file."""
    values: np.ndarray


def in_big_vision_names(arrays: Mapping[str, np.ndarray], key: str | None) -> dict[str, Leaf]:
    """The leaves below `key`, or below the one prefix that all of them have; scanned blocks one by one."""
    leaves: dict[str, Leaf] = {}
    for name, leaf in _unscanned(_below(arrays, key)):
        for theirs, ours in _NAMES.items():
            name = re.sub(theirs, ours, name)
        if name in leaves:
            raise UserError(f"'{leaves[name].name}' and '{leaf.name}' are both the '{name}' of a ViT")
        leaves[name] = leaf
    return leaves


def _below(arrays: Mapping[str, np.ndarray], key: str | None) -> dict[str, Leaf]:
    odd = next((name for name, array in arrays.items() if len(name) > LONGEST_NAME or not array.size), None)
    if odd is not None:
        raise UserError(f"'{odd[:80]}' is empty, or has a name of more than {LONGEST_NAME} letters")
    ends = [name.removesuffix(_EMBEDDING) for name in arrays if name == _EMBEDDING or name.endswith(f"/{_EMBEDDING}")]
    prefix = f"{key.strip('/')}/" if key else ends[0] if len(ends) == 1 else None
    if prefix is None or prefix not in ends:
        there = ", ".join(f"'{end.strip('/')}'" for end in ends[:4])
        found = f"there are ViTs below {there}; choose with --weights-key"
        if not any(ends):
            found = "the file is one itself; leave --weights-key out" if ends else f"no leaf is called '{_EMBEDDING}'"
        raise UserError(f"no weights of a ViT{f' below {key!r}' if key else ''}: {found}")
    if not key:
        others = [name for name in arrays if not name.startswith(prefix)]
        if others:
            raise UserError(
                f"'{others[0]}'{f' and {len(others) - 1} more' if others[1:] else ''} isn't part of the ViT below "
                f"'{prefix.strip('/')}'; --weights-key {prefix.strip('/')} takes that one alone"
            )
    return {name.removeprefix(prefix): Leaf(name, array) for name, array in arrays.items() if name.startswith(prefix)}


def _unscanned(leaves: Mapping[str, Leaf]) -> Iterator[tuple[str, Leaf]]:
    """The blocks of a scan lie in one array with an axis more."""
    depths = {len(leaf.values) for name, leaf in leaves.items() if name.startswith(_SCANNED) and leaf.values.ndim}
    if len(depths) > 1 or max(depths, default=0) > MOST_BLOCKS:
        raise UserError(f"the scanned blocks differ in number, or are too many: {sorted(depths)[:4]}")
    for name, leaf in leaves.items():
        if not name.startswith(_SCANNED):
            yield name, leaf
            continue
        for block, values in enumerate(leaf.values if leaf.values.ndim else ()):
            yield name.replace("encoderblock/", f"encoderblock_{block}/"), Leaf(leaf.name, values)

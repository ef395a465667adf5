"""ViT weights of big_vision, vision_transformer and scenic (.npz), in both directions.

What the model is (width, depth, heads, patches, classes, pooling) follows from the shapes. Every leaf is used, or the
file is refused with the name of one that isn't.
"""

import copy
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor

from robustvit.core.binary import read_arrays
from robustvit.core.errors import UserError
from robustvit.core.files import write_atomic
from robustvit.core.progress import say
from robustvit.models.create import ModelSettings
from robustvit.models.foreign import misfits
from robustvit.models.jax_leaves import HEAD_WITH_TANH, MOST_BLOCKS, SCENIC_HEAD, Leaf, in_big_vision_names, slots
from robustvit.models.normalize import Normalization, Normalized
from robustvit.models.weights import save_model

_BY_WIDTH = {192: "vit_tiny_patch16_224", 384: "vit_small_patch16_224", 1024: "vit_large_patch16_224"}
_BLOCK = re.compile(r"Transformer/encoderblock_(\d+)/")
_QUERY = "Transformer/encoderblock_0/MultiHeadDotProductAttention_0/query/kernel"
_HIDDEN = "Transformer/encoderblock_0/MlpBlock_0/Dense_0/kernel"
_NOT_IN_FLAX = {".ls1.": "LayerScale", ".q_norm.": "qk-norm", "patch_embed.conv1.": "convolutional stem"}
"""Parts of other ViTs by the names of their tensors."""
_WITH_CLASS_TOKEN = "Transformer/posembed_input/pos_embedding"
"""vision_transformer's, whose class token has a position of its own."""


def read_jax(
    path: Path, key: str | None = None, img_size: int | None = None
) -> tuple[dict[str, Tensor], ModelSettings]:
    """The tensors under timm's names, and how to build their model; the file knows no mean and std.

    `key` is the part of the tree that holds the ViT, if there is more. `img_size` is for files without positions, to
    which the fixed ones (sincos2d) are added.
    """
    try:
        leaves = in_big_vision_names(read_arrays(path, None, kinds="biufV"), key)
        leaves = {name: leaf._replace(values=_floats(leaf)) for name, leaf in leaves.items()}
        if "pos_embedding" not in leaves:
            leaves["pos_embedding"] = Leaf("pos_embedding", _fixed_positions(leaves, img_size))
            say(f"{path}: has no position embedding; the fixed one (sincos2d) for {img_size} pixels is added")
        elif img_size is not None:
            raise UserError(f"--img-size {img_size}: the file knows its own; it is for files without positions")
        settings = _settings(leaves)
        return _state(leaves, settings), settings
    except UserError as error:
        raise UserError(f"{path}: {str(error).removeprefix(f'{path}: ')}") from None


def _floats(leaf: Leaf) -> np.ndarray:
    """As float32, exactly; NumPy without extensions reads bfloat16 as raw bytes."""
    dtype = leaf.values.dtype
    if dtype.kind == "V" and dtype.itemsize == 2 and dtype.names is None:
        values = (leaf.values.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    elif dtype in (np.float32, np.float16):
        values = leaf.values.astype(np.float32)
    else:
        raise UserError(f"'{leaf.name}' is {dtype}; weights are float32, float16 or bfloat16")
    if not np.isfinite(values).all():
        raise UserError(f"'{leaf.name}' holds NaN or infinity")
    return values


def _shape(leaves: Mapping[str, Leaf], name: str, *letters: str) -> tuple[int, ...]:
    if name not in leaves:
        raise UserError(f"'{name}' is missing, which every ViT classifier of big_vision has")
    shape: tuple[int, ...] = leaves[name].values.shape
    if len(shape) != len(letters) or not all(shape):
        raise UserError(f"'{leaves[name].name}' is {_text(shape)}, not {' x '.join(letters)}")
    return shape


def _text(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "a number"


def _patches(leaves: Mapping[str, Leaf]) -> tuple[int, int]:
    """Their size, and the width of the model."""
    height, width, channels, dimensions = _shape(
        leaves, "embedding/kernel", "height", "width", "3", "width of the model"
    )
    if height != width or channels != 3:
        raise UserError(
            f"patches of {height} x {width} pixels in {channels} channels; only square ones in color are known"
        )
    return height, dimensions


def _fixed_positions(leaves: Mapping[str, Leaf], img_size: int | None) -> np.ndarray:
    """Sine and cosine of the column, then of the row, at width / 4 frequencies from 1 down to 1/10000.

    scenic's stop one step before: its head tells them apart.
    """
    patch, width = _patches(leaves)
    if img_size is None:
        raise UserError(
            "has no 'pos_embedding'; if its positions are the fixed ones (sincos2d), say so by the image "
            "size: robustvit convert --img-size 224"
        )
    if img_size % patch or width % 4 or width < 8:
        raise UserError(f"--img-size {img_size}: a multiple of the patches of {patch} pixels; width {width} of 4")
    row, column = np.mgrid[: img_size // patch, : img_size // patch].reshape(2, -1, 1)
    is_scenic = "head/kernel" in leaves and leaves["head/kernel"].name.endswith(f"{SCENIC_HEAD}kernel")
    frequency = 10_000.0 ** -(np.arange(width // 4) / (width // 4 - (not is_scenic)))
    waves = [wave(place * frequency) for place in (column, row) for wave in (np.sin, np.cos)]
    return np.concatenate(waves, 1)[None].astype(np.float32)


def _settings(leaves: Mapping[str, Leaf]) -> ModelSettings:
    patch, width = _patches(leaves)
    if not any(name.startswith("head/") for name in leaves):
        raise UserError("has no head (head/kernel, output_projection/kernel): it isn't a classifier")
    if any(name.startswith(HEAD_WITH_TANH) for name in leaves):
        raise UserError("'pre_logits' is a layer with tanh before the head, which timm's ViT has no place for")
    has_class_token, has_map_head = "cls" in leaves, any(name.startswith("MAPHead_0/") for name in leaves)
    if has_class_token and has_map_head:
        raise UserError("'cls' and a MAPHead: a ViT pools by one of them")
    _, tokens, _ = _shape(leaves, "pos_embedding", "1", "tokens", "width of the model")
    no_embed_class = math.isqrt(tokens) ** 2 == tokens
    side = math.isqrt(tokens if no_embed_class else tokens - 1)
    if side**2 != tokens - (not no_embed_class) or not (no_embed_class or has_class_token):
        raise UserError(
            f"'{leaves['pos_embedding'].name}' has {tokens} positions, which aren't those of a square image"
        )
    _, heads, _ = _shape(leaves, _QUERY, "width of the model", "heads", "width of a head")
    _, hidden = _shape(leaves, _HIDDEN, "width of the model", "width of the MLP")
    blocks = {int(match[1]) for match in map(_BLOCK.match, leaves) if match}
    if blocks != set(range(len(blocks))) or len(blocks) > MOST_BLOCKS:
        raise UserError(f"its blocks aren't numbered from 0 on: {sorted(blocks)[:4]} ... {max(blocks)}")
    more: dict[str, Any] = {
        "embed_dim": width,
        "depth": len(blocks),
        "num_heads": heads,
        "mlp_ratio": hidden / width if int(width * (hidden / width)) == hidden else math.nextafter(hidden / width, 99),
        "class_token": has_class_token,
        "global_pool": "token" if has_class_token else "map" if has_map_head else "avg",
        "no_embed_class": no_embed_class,
        "fc_norm": False,  # flax normalizes the tokens, timm by default their mean
        "act_layer": "gelu_tanh",
    }
    _, classes = _shape(leaves, "head/kernel", "width of the model", "classes")
    return ModelSettings(_BY_WIDTH.get(width, "vit_base_patch16_224"), classes, side * patch, patch, settings=more)


def _state(leaves: Mapping[str, Leaf], settings: ModelSettings) -> dict[str, Tensor]:
    rest, parts = dict(leaves), dict[str, list[np.ndarray]]()
    with torch.device("meta"):  # shapes alone
        own = settings.build().backbone.state_dict()
    pool, heads = settings.settings["global_pool"], settings.settings["num_heads"]
    for slot in slots(settings.settings["depth"], pool == "token", pool == "map"):
        if slot.leaf not in rest:
            raise UserError(f"'{slot.leaf}' is missing, which a ViT of this kind has")
        leaf = rest.pop(slot.leaf)
        wanted = slot.to_jax(np.broadcast_to(np.float32(0), own[slot.tensor].shape), heads).shape  # takes no memory
        if leaf.values.shape != wanted:  # also where another number of heads would fit the tensor
            raise UserError(f"'{leaf.name}' is {_text(leaf.values.shape)}, in this ViT {_text(wanted)}")
        parts.setdefault(slot.tensor, []).append(slot.to_timm(leaf.values))
    if rest:
        names = [leaf.name for leaf in rest.values()]
        found = f"'{names[0]}' and {len(names) - 1} more have" if names[1:] else f"'{names[0]}' has"
        raise UserError(f"{found} no place in a ViT")
    return {name: torch.from_numpy(np.ascontiguousarray(np.concatenate(arrays))) for name, arrays in parts.items()}


def convert_jax(
    path: Path, normalization: Normalization, out: Path, key: str | None = None, img_size: int | None = None
) -> Normalized:
    """The model, saved as a checkpoint."""
    state, settings = read_jax(path, key, img_size)
    model = replace(settings, mean=normalization.mean, std=normalization.std).build().eval()
    problems = misfits(state, model.backbone)
    if problems:
        raise UserError(f"{path}: {problems}")
    model.backbone.load_state_dict(state)
    save_model(model, out, converted_from=path.name)
    return model


def write_jax(model: Normalized, path: Path) -> Path:
    """In big_vision's names and order; positions that include the class token have vision_transformer's name."""
    leaves = _leaves(model.backbone)
    with TemporaryDirectory() as folder:  # read back before the file is written for good
        np.savez(Path(folder) / "model.npz", **leaves)
        state, settings = read_jax(Path(folder) / "model.npz")
        built: Any = settings.build().backbone
        built.load_state_dict(state)
    if not _agree(built, model.backbone):
        raise UserError(f"export: big_vision's ViT computes other logits than this one: {_difference(model.backbone)}")
    write_atomic(path, lambda file: np.savez(file, **leaves))
    return path


def _leaves(backbone: Any) -> dict[str, Any]:
    from timm.models import VisionTransformer

    if not isinstance(backbone, VisionTransformer):
        raise UserError(f"export: big_vision has vision transformers alone, no {type(backbone).__name__}")
    state = {name: tensor.detach().cpu().float().numpy() for name, tensor in backbone.state_dict().items()}
    known = list(slots(len(backbone.blocks), backbone.cls_token is not None, backbone.attn_pool is not None))
    odd = sorted(set(state) ^ {slot.tensor for slot in known})
    if odd:
        lacks = [what for part, what in _NOT_IN_FLAX.items() if any(part in name for name in odd)]
        where = f"'{odd[0]}' is in {'this model' if odd[0] in state else 'big_vision'} alone"
        raise UserError(f"export: big_vision's ViT has no {' and no '.join(lacks)}" if lacks else f"export: {where}")
    first: Any = backbone.blocks[0]
    heads = int(first.attn.num_heads)
    leaves = {slot.leaf: slot.to_jax(state[slot.tensor], heads) for slot in known}
    if backbone.cls_token is not None and not backbone.no_embed_class:
        leaves[_WITH_CLASS_TOKEN] = leaves.pop("pos_embedding")
    return {name: np.ascontiguousarray(leaves[name]) for name in sorted(leaves)}


def _agree(one: Any, other: Any) -> bool:
    """On random images in float64, under a random head: one of zeros would hide every difference."""
    generator = torch.Generator().manual_seed(0)
    side, head = one.patch_embed.img_size[0], torch.randn(one.head.weight.shape, generator=generator).double()
    x = torch.rand(2, 3, side, side, generator=generator).double()
    logits = []
    for network in (one, other):
        network = copy.deepcopy(network).double().cpu().eval()
        network.head.weight.data = head
        with torch.no_grad():
            logits.append(network(x))
    return bool((logits[0] - logits[1]).abs().max() <= 1e-10 * logits[1].abs().max())


def _difference(backbone: Any) -> str:
    activation = type(backbone.blocks[0].mlp.act).__name__
    if activation != "GELUTanh":
        return (
            f"its MLPs have {activation}, flax's gelu is the tanh approximation (model.settings.act_layer: gelu_tanh)"
        )
    return "its normalization, attention or pooling is another"

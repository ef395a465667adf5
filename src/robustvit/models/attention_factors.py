"""Attention factors that belong to a model: in force wherever it is called, kept with its weights, not among them."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from robustvit.core.errors import UserError
from robustvit.models.attention_probe import Scaling, attention_blocks, install
from robustvit.models.weights import HANDLERS, Handler

LEAST, MOST = 1e-30, 1e30
_KEY = "attention_factors"


def attention_factors(model: nn.Module) -> tuple[float, ...] | None:
    """One for each attention block, or None where attention is as it was built."""
    factors = getattr(model, _KEY, None)
    return tuple(factors.tolist()) if isinstance(factors, Tensor) else None


def is_factor(value: Any) -> bool:
    """A number above 0 that no precision turns into 0 or infinity."""
    return isinstance(value, float | int) and not isinstance(value, bool) and LEAST <= value <= MOST


def set_attention_factors(model: nn.Module, factors: Sequence[float]) -> None:
    """From now on every block's scores are multiplied by its factor; copies of the model keep theirs."""
    if not isinstance(factors, Sequence):
        raise UserError(f"attention_factors is {factors!r}, not a list of numbers")
    if not all(map(is_factor, factors)):
        raise UserError(f"attention factors are numbers above 0, one for each block, not {factors}")
    values = torch.tensor(factors, dtype=torch.float64)
    current = getattr(model, _KEY, None)
    if isinstance(current, Tensor) and current.shape == values.shape:
        current.copy_(values)
    else:
        install(model, [Scaling(values)])  # refuses another number of factors
        model.attention_factors = values  # no buffer: the state dict stays the architecture's own


def folded(model: nn.Module) -> nn.Module:
    """The model with its factors moved into the weights, in place: the same logits from the state dict alone."""
    factors = attention_factors(model)
    if factors is None:
        return model
    blocks = list(attention_blocks(model).values())
    unknown = {_kind(b) for b in blocks if _kind(b) not in _SCALED or getattr(b, "rope", None) is not None}
    if unknown:
        raise UserError(
            f"the attention factors of this model can't be moved into the weights of {', '.join(sorted(unknown))}; "
            "keep the checkpoint as it is, whose factors load_model knows"
        )
    with torch.no_grad():
        for factor, block in zip(factors, blocks, strict=True):
            for tensor in _SCALED[_kind(block)](block):
                tensor.mul_(factor)
        set_attention_factors(model, [1.0] * len(factors))
    return model


def _kind(block: nn.Module) -> str:
    """The class with its module in timm, as many families call theirs `Attention` and mean other things."""
    return f"{type(block).__module__.removeprefix('timm.')}.{type(block).__qualname__}"


def _affine(layer: Any) -> list[Tensor]:
    return [tensor for tensor in (layer.weight, getattr(layer, "bias", None)) if tensor is not None]


def _queries(qkv: nn.Linear) -> list[Tensor]:
    return [tensor[: len(tensor) // 3] for tensor in _affine(qkv)]


def _normed_queries(block: Any) -> list[Tensor]:
    return _queries(block.qkv) if isinstance(block.q_norm, nn.Identity) else _affine(block.q_norm)


_SCALED: dict[str, Callable[[Any], list[Tensor]]] = {
    "layers.attention.Attention": _normed_queries,
    "models.vision_transformer.Attention": _normed_queries,  # where it was before timm 1.0.20
    "models.cait.ClassAttn": lambda block: _affine(block.q),
    "models.cait.TalkingHeadAttn": lambda block: _queries(block.qkv),  # before the heads' scores are mixed
    "models.swin_transformer.WindowAttention": lambda block: [*_queries(block.qkv), block.relative_position_bias_table],
    "models.xcit.XCA": lambda block: [block.temperature],
}
"""The tensors that the scores of each kind are proportional to."""

HANDLERS[_KEY] = Handler(lambda model: list(attention_factors(model) or ()) or None, set_attention_factors, folded)

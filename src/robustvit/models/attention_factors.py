"""Attention factors that belong to a model: in force wherever it is called, kept with its weights, not among them."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from robustvit.core.errors import UserError
from robustvit.models.attention_probe import Scaling, attention_blocks, install
from robustvit.models.extra_state import Handler, register_extra_state

LEAST, MOST = 1e-30, 1e30


def attention_factors(model: nn.Module) -> tuple[float, ...] | None:
    """One for each attention block, or None where attention is as it was built."""
    factors = getattr(model, "attention_factors", None)
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
    held = getattr(model, "attention_factors", None)
    if isinstance(held, Tensor):
        if held.shape != values.shape:
            raise UserError(f"the model has {len(held)} attention blocks, the factors are {len(values)}")
        held.copy_(values)
        return
    install(model, [Scaling(values)])
    model.attention_factors = values  # no buffer: the state dict stays the architecture's own


def folded(model: nn.Module) -> nn.Module:
    """The model with its factors moved into the weights, in place: the same logits, and nothing left to remember."""
    factors = attention_factors(model)
    if factors is None:
        return model
    blocks = attention_blocks(model)
    unknown = {_kind(block) for block in blocks.values() if _kind(block) not in _FOLDS}
    unknown |= {_kind(block) for block in blocks.values() if getattr(block, "rope", None) is not None}
    if unknown:
        raise UserError(
            f"the attention factors of this model can't be moved into the weights of {', '.join(sorted(unknown))}; "
            "keep the checkpoint as it is, whose factors load_model knows"
        )
    with torch.no_grad():
        for factor, block in zip(factors, blocks.values(), strict=True):
            _FOLDS[_kind(block)](block, factor)
        set_attention_factors(model, [1.0] * len(factors))
    return model


def _fold_attention(block: Any, factor: float) -> None:
    if not isinstance(block.q_norm, nn.Identity):
        block.q_norm.weight.mul_(factor)
        if getattr(block.q_norm, "bias", None) is not None:
            block.q_norm.bias.mul_(factor)
        return
    _fold_query(block.qkv, factor)


def _fold_query(qkv: nn.Linear, factor: float) -> None:
    rows = qkv.out_features // 3
    qkv.weight[:rows].mul_(factor)
    if qkv.bias is not None:
        qkv.bias[:rows].mul_(factor)


def _fold_class_attention(block: Any, factor: float) -> None:
    block.q.weight.mul_(factor)
    if block.q.bias is not None:
        block.q.bias.mul_(factor)


def _fold_window(block: Any, factor: float) -> None:
    _fold_query(block.qkv, factor)
    block.relative_position_bias_table.mul_(factor)


def _fold_covariance(block: Any, factor: float) -> None:
    block.temperature.mul_(factor)


def _kind(block: nn.Module) -> str:
    """The class with its module in timm, as many families call theirs `Attention` and mean other things."""
    return f"{type(block).__module__.removeprefix('timm.')}.{type(block).__qualname__}"


_FOLDS: dict[str, Callable[[Any, float], None]] = {
    "layers.attention.Attention": _fold_attention,
    "models.vision_transformer.Attention": _fold_attention,  # where it was before timm 1.0.20
    "models.cait.ClassAttn": _fold_class_attention,
    "models.cait.TalkingHeadAttn": lambda block, factor: _fold_query(block.qkv, factor),
    "models.swin_transformer.WindowAttention": _fold_window,
    "models.xcit.XCA": _fold_covariance,
}
"""Before talking heads mix the scores, a factor on the query is one on every head's."""


def _stored(model: nn.Module) -> list[float] | None:
    factors = attention_factors(model)
    return None if factors is None else list(factors)


register_extra_state("attention_factors", Handler(get=_stored, set=set_attention_factors, fold=folded))

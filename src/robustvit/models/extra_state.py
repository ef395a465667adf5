"""What belongs to a model and isn't in its state dict."""

from typing import Any

from torch import nn

from robustvit.models.attention_factors import attention_factors, set_attention_factors


def extra_state(model: nn.Module) -> dict[str, Any]:
    """Plain values that a checkpoint keeps beside the weights."""
    factors = attention_factors(model)
    return {} if factors is None else {"attention_factors": list(factors)}


def load_extra_state(model: nn.Module, state: dict[str, Any]) -> None:
    if "attention_factors" in state:
        set_attention_factors(model, state["attention_factors"])

"""Behavior of a model that its state dict doesn't hold: kept with the weights, under names of its own."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn


@dataclass(frozen=True)
class Handler:
    """How one kind of extra state is read, restored and moved into the weights."""

    get: Callable[[nn.Module], Any]
    """Plain data that JSON can hold, or None where the model has none."""
    set: Callable[[nn.Module, Any], None]
    fold: Callable[[nn.Module], nn.Module]
    """Moves it into the weights, in place; a UserError where it can't."""


_HANDLERS: dict[str, Handler] = {}


def register_extra_state(name: str, handler: Handler) -> None:
    _HANDLERS[name] = handler


def extra_state(model: nn.Module) -> dict[str, Any]:
    """What is set on the model, by name."""
    values = {name: handler.get(model) for name, handler in _HANDLERS.items()}
    return {name: value for name, value in values.items() if value is not None}


def load_extra_state(model: nn.Module, state: Mapping[str, Any]) -> None:
    """Restores what `extra_state` gave; other names are left alone."""
    for name, handler in _HANDLERS.items():
        if state.get(name) is not None:
            handler.set(model, state[name])


def folded(model: nn.Module) -> nn.Module:
    """The model with its extra state moved into the weights, in place: the same logits from the state dict alone."""
    for name in extra_state(model):
        model = _HANDLERS[name].fold(model)
    return model

"""Behavior of a model that its state dict doesn't hold: saved with the weights, under keys of its own."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torch import nn

from robustvit.core.errors import UserError


class Handler(NamedTuple):
    get: Callable[[nn.Module], Any]
    """As JSON; None where the model is as it was built."""
    set: Callable[[nn.Module, Any], None]
    fold: Callable[[nn.Module], object]
    """Moves the behavior into the weights, in place."""


HANDLERS: dict[str, Handler] = {}


def extra_state(model: nn.Module) -> dict[str, Any]:
    return {key: value for key, handler in HANDLERS.items() if (value := handler.get(model)) is not None}


def load_extra_state(model: nn.Module, state: Mapping[str, Any], source: str = "extra state") -> None:
    """Restores what `extra_state` gave; other keys are left alone."""
    for key, handler in HANDLERS.items():
        try:
            if state.get(key) is not None:
                handler.set(model, state[key])
        except UserError as error:
            raise UserError(f"{source}: {error}") from None


def folded(model: nn.Module) -> nn.Module:
    """The model with all such behavior moved into its weights, in place: the same logits from the state dict alone."""
    for handler in HANDLERS.values():
        handler.fold(model)
    return model

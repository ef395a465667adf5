"""Whatever is changed on a model while it is attacked or judged is put back; `set_forward` alone is for good."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


@contextmanager
def temporarily(owners: Iterable[Any], attribute: str, value: Any) -> Iterator[None]:
    """The attribute has this value inside, each owner's own outside."""
    before = [(owner, getattr(owner, attribute)) for owner in owners]
    try:
        for owner, _ in before:
            setattr(owner, attribute, value)
        yield
    finally:
        for owner, own_value in before:
            setattr(owner, attribute, own_value)


def _module(model: object) -> nn.Module:
    """Any other callable has no modes, parameters or buffers."""
    return model if isinstance(model, nn.Module) else nn.Module()


@contextmanager
def in_mode(model: object, mode: str) -> Iterator[None]:
    """Every submodule in "eval" or "train" mode inside, each in its own mode outside."""
    module = _module(model)
    with temporarily(module.modules(), "training", mode == "train"):
        module.train(mode == "train")  # some modules do more than set it
        yield


def set_training(model: nn.Module) -> None:
    """Train mode; but a batch norm whose weights don't train keeps its statistics, too."""
    model.train()
    for module in model.modules():
        own = list(module.parameters(recurse=False))
        if isinstance(module, _BatchNorm) and own and not any(parameter.requires_grad for parameter in own):
            module.eval()


@contextmanager
def attacking(model: object, mode: str) -> Iterator[None]:
    """The mode of a search inside training, in which parameters need no gradient; batch norms in train mode use the
    batch's statistics but keep none."""
    with in_mode(model, mode), keeping_statistics(model), _in_search(_module(model)):
        yield


def _in_search(module: nn.Module) -> AbstractContextManager[None]:
    """Frozen parameters, or gathered ones where they are sharded: freezing doesn't reach what is gathered."""
    from robustvit.models.sharding import is_sharded, keeping_gathered  # which imports this module, too

    if is_sharded(module):
        return keeping_gathered(module)
    return temporarily(module.parameters(), "requires_grad", False)


def keeping_statistics(model: object) -> AbstractContextManager[None]:
    """Running statistics of batch norms don't change inside, whatever the mode."""
    norms = [module for module in _module(model).modules() if isinstance(module, _BatchNorm)]
    return temporarily(norms, "track_running_stats", False)


@contextmanager
def eval_mode(model: object) -> Iterator[None]:
    """Eval mode without parameter gradients (38 % fewer activations kept); modes, gradients, buffers come back."""
    module = _module(model)
    buffers = [(buffer, buffer.clone()) for buffer in module.buffers()]
    with in_mode(module, "eval"), temporarily(module.parameters(), "requires_grad", False):
        try:
            yield
        finally:
            with torch.no_grad():
                for buffer, value in buffers:
                    if not (buffer.is_meta or torch.equal(buffer, value.to(buffer.device))):
                        buffer.copy_(value)


def set_forward(modules: Iterable[nn.Module], make: Callable[[type[nn.Module]], Any]) -> None:
    """From now on each of these modules, and its copies, has the `forward` that is made from its class."""
    for module in modules:
        module.__class__ = _subclass(type(module), make)


@contextmanager
def with_forward(modules: Iterable[nn.Module], make: Callable[[type[nn.Module]], Any]) -> Iterator[None]:
    """The same, but only inside the `with` block."""
    before = [(module, type(module)) for module in modules]
    try:
        set_forward((module for module, _ in before), make)
        yield
    finally:
        for module, kind in before:
            module.__class__ = kind


def _subclass(kind: type[nn.Module], make: Callable[[type[nn.Module]], Any]) -> type[nn.Module]:
    """A subclass of the same name, since names of layers are part of a model's identity; copies keep it."""
    if vars(kind).get("_made_from", (None, None))[1] is make:
        return kind
    known = _subclasses.get((kind, make))
    if known is not None:
        return known
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    body = {"forward": make(kind), "_made_from": (kind, make), "__reduce_ex__": _reduced}
    made: type[nn.Module] = type(kind.__name__, (kind,), {**body, **names})
    _subclasses[kind, make] = made
    return made


_subclasses: dict[tuple[type[nn.Module], Any], type[nn.Module]] = {}
"""Those that exist already, so that two modules of one class have one again."""


def _reduced(self: nn.Module, protocol: Any) -> tuple[Any, ...]:
    """For pickle, which looks for a class by its name and would find the one that this one is made from."""
    kind: Any = type(self)
    makes: list[Any] = []
    while "_made_from" in vars(kind):
        kind, make = vars(kind)["_made_from"]
        makes.insert(0, make)
    return _empty, (kind, *makes), self.__getstate__()  # type: ignore[no-untyped-call]


def _empty(kind: type[nn.Module], *makes: Callable[[type[nn.Module]], Any]) -> nn.Module:
    for make in makes:
        kind = _subclass(kind, make)
    return kind.__new__(kind)

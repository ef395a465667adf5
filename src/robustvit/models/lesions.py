"""Networks with parts left out: the attention, the MLP or the whole of a block, or single heads.

A part is left out where it adds to the residual path: it then adds zeros, and computes nothing. Whether a family of
networks is built that way is found out by running it.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from robustvit.core.errors import UserError
from robustvit.models.attention_probe import is_attention
from robustvit.models.layout import feature_blocks

ATTENTION, MLP, BLOCK = "attention", "mlp", "block"
_MLP = re.compile(r"Mlp|FeedForward|FFN|SwiGLU")
_PASSIVE = re.compile(r"Norm|LayerScale|DropPath|Dropout|Identity")
"""Modules that only scale or pass on what others add."""


@dataclass(frozen=True)
class Block:
    """A block of a network, and what can be left out of it."""

    name: str
    parts: tuple[tuple[str, str], ...] = ()
    """Kind and name of each module that adds to the residual path; without all, the block passes on its input."""
    argument: int | None = None
    """Of the block's inputs, which one it changes; None: no input has the shape of its output, so it must stay."""
    heads: int = 0
    """Of its attention; 0 where it can't be split into heads."""

    def part(self, kind: str) -> str | None:
        return dict(self.parts).get(kind)


def removable(model: nn.Module, x: Tensor) -> list[Block]:
    """The blocks of a network with what can be left out of each, found by two passes of these images."""
    names = feature_blocks(model)
    shapes = _Shapes(model, names)
    with shapes, torch.no_grad():
        model(x)
    blocks = []
    for name in names:
        parts = _parts(model.get_submodule(name), name)
        keeps = all(shapes.argument(part) == 0 for _, part in parts)
        attention = dict(parts).get(ATTENTION)
        heads = 0 if attention is None else _num_heads(model.get_submodule(attention))
        blocks.append(Block(name, parts if keeps else (), shapes.argument(name), heads))
    candidates = [block for block in blocks if block.parts]
    is_identity = _Identity(model, candidates)
    everything = Lesion(parts=tuple(part for block in candidates for _, part in block.parts))
    with everything(model), is_identity, torch.no_grad():
        model(x)
    return [block if block.name in is_identity.found else Block(block.name, (), block.argument) for block in blocks]


def _parts(block: nn.Module, name: str) -> tuple[tuple[str, str], ...]:
    """Attention, MLP, and whatever else in a block isn't a norm or a scale, by its own name."""
    found = []
    for child, module in block.named_children():
        kind = type(module).__name__
        if is_attention(kind):
            found.append((ATTENTION, f"{name}.{child}"))
        elif _MLP.search(kind):
            found.append((MLP, f"{name}.{child}"))
        elif not _PASSIVE.search(kind):
            found.append((child, f"{name}.{child}"))
    kinds = [kind for kind, _ in found]
    return tuple(found) if {ATTENTION, MLP} <= set(kinds) and len(set(kinds)) == len(kinds) else ()


def _num_heads(attention: nn.Module) -> int:
    """Where the output of each head is a part of what the module's `proj` gets."""
    heads, projection = getattr(attention, "num_heads", None), getattr(attention, "proj", None)
    if not isinstance(heads, int) or not isinstance(projection, nn.Linear) or projection.in_features % heads:
        return 0
    return heads


@dataclass(frozen=True)
class Lesion:
    """What is left out, by the names of modules; as a function of the model, a context in which it is."""

    parts: tuple[str, ...] = ()
    """Attention, MLPs and the like."""
    blocks: tuple[tuple[str, int], ...] = ()
    """Whole blocks, each with the number of the input that it passes on."""
    heads: tuple[tuple[str, int], ...] = ()
    """Heads of attention modules, by number."""

    @contextmanager
    def __call__(self, model: Any) -> Iterator[None]:
        with ExitStack() as stack:
            for name in self.parts:
                stack.enter_context(_replaced(model, name, _Silent()))
            for name, argument in self.blocks:
                stack.enter_context(_replaced(model, name, _Passed(argument)))
            for name, head in self.heads:
                stack.enter_context(_silenced_head(model.get_submodule(name), head))
            yield


@contextmanager
def _replaced(model: nn.Module, name: str, other: "_Substitute") -> Iterator[None]:
    """Not its forward pass alone: hooks of what is left out, as attention factors have, would miss its softmax."""
    parent, _, child = name.rpartition(".")
    owner, before = model.get_submodule(parent), model.get_submodule(name)
    other.__dict__["before"] = before  # not as a module of it
    setattr(owner, child, other.train(before.training))
    try:
        yield
    finally:
        setattr(owner, child, before)


@contextmanager
def _silenced_head(attention: nn.Module, head: int) -> Iterator[None]:
    size = attention.proj.in_features // attention.num_heads  # type: ignore[operator, union-attr]

    def silence(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        x = args[0].clone()
        x[..., head * size : (head + 1) * size] = 0
        return (x, *args[1:])

    handle = attention.proj.register_forward_pre_hook(silence)  # type: ignore[union-attr]
    try:
        yield
    finally:
        handle.remove()


class _Substitute(nn.Module):
    """Has the attributes of what it replaces: torch's TransformerEncoder looks at those of its first layer."""

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.__dict__["before"], name)


class _Silent(_Substitute):
    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return torch.zeros_like(x)


class _Passed(_Substitute):
    def __init__(self, argument: int) -> None:
        super().__init__()
        self.argument = argument

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return args[self.argument]


class _Watching(ABC):
    """Sees inputs and outputs of modules."""

    def __init__(self, model: nn.Module, names: Sequence[str]) -> None:
        self._modules = {name: model.get_submodule(name) for name in names}

    def __enter__(self) -> None:
        self._handles = [
            module.register_forward_hook(lambda _, args, output, name=name: self.see(name, args, output))
            for name, module in self._modules.items()
        ]

    def __exit__(self, *error: object) -> None:
        for handle in self._handles:
            handle.remove()

    @abstractmethod
    def see(self, name: str, args: tuple[Any, ...], output: Any) -> None: ...


class _Shapes(_Watching):
    """Which input of a module has the shape of its output."""

    def __init__(self, model: nn.Module, names: Sequence[str]) -> None:
        parts = [part for name in names for _, part in _parts(model.get_submodule(name), name)]
        super().__init__(model, [*names, *parts])
        self._arguments: dict[str, int | None] = {}

    def see(self, name: str, args: tuple[Any, ...], output: Any) -> None:
        shape = output.shape if isinstance(output, Tensor) else None
        fits = (number for number, one in enumerate(args) if isinstance(one, Tensor) and one.shape == shape)
        argument = next(fits, None)
        if self._arguments.setdefault(name, argument) != argument:
            self._arguments[name] = None  # used twice in different ways

    def argument(self, name: str) -> int | None:
        return self._arguments.get(name)


class _Identity(_Watching):
    """Which blocks put out their input, bit for bit."""

    def __init__(self, model: nn.Module, blocks: Sequence[Block]) -> None:
        super().__init__(model, [block.name for block in blocks])
        self._arguments = {block.name: block.argument for block in blocks}
        self.found: set[str] = set()

    def see(self, name: str, args: tuple[Any, ...], output: Any) -> None:
        argument = self._arguments[name]
        if argument is not None and torch.equal(args[argument], output):
            self.found.add(name)


def check_removable(blocks: Sequence[Block], name: str) -> None:
    if not any(block.argument is not None for block in blocks):
        raise UserError(f"{name}: no block passes on what it gets in the same shape, so none can be left out")

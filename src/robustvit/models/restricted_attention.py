"""Attention with masked pairs of patches: distant ones, random ones, or all but those of the class token."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from robustvit.core.errors import UserError
from robustvit.core.streams import seeded_order
from robustvit.models.attention_probe import ScoreObserver, attention_blocks, probing
from robustvit.models.heads import network_of
from robustvit.models.layout import Layout, layout_of

Kind = Literal["near", "random", "class"]


@dataclass(frozen=True)
class Restriction:
    """Which pairs aren't masked; as a function of the model, a context in which the others get no attention.

    Tokens without a position, such as the class token, attend to all and all attend to them.
    """

    kind: Kind
    """`near`: patches at most `distance` rows and columns apart. `random`: as many pairs of patches, drawn by the seed.
    `class`: of the patches, each only itself."""
    layouts: tuple[tuple[int, Layout], ...]
    """By the number of an attention block, where its tokens lie; other blocks are as they were."""
    distance: int = 0
    seed: int = 0

    @contextmanager
    def __call__(self, model: Any) -> Iterator[None]:
        with probing(model, partial(_masked, self)):
            yield

    def allowed(self, block: int) -> Tensor | None:
        """(N, N) whether a query may see a key; None where all may."""
        layout = dict(self.layouts).get(block)
        return None if layout is None else _allowed_pairs(self.kind, layout, self.distance, self.seed)


def _masked(restriction: Restriction, block: int, scores: Tensor) -> Tensor:
    allowed = restriction.allowed(block)
    return scores if allowed is None else scores.masked_fill(~allowed.to(scores.device), -torch.inf)


@cache
def _allowed_pairs(kind: Kind, layout: Layout, distance: int, seed: int) -> Tensor:
    patches = _near(layout, 0 if kind == "class" else distance)
    if kind == "random":
        patches = _shuffled(patches, seed, may_be_empty=layout.prefix > 0)
    whole = torch.ones(layout.prefix + layout.positions, layout.prefix + layout.positions, dtype=torch.bool)
    whole[layout.prefix :, layout.prefix :] = patches
    return whole


def _near(layout: Layout, distance: int) -> Tensor:
    rows, columns = (torch.arange(layout.positions) // layout.width, torch.arange(layout.positions) % layout.width)
    apart = torch.maximum((rows[:, None] - rows).abs(), (columns[:, None] - columns).abs())
    return apart <= distance


def _shuffled(patches: Tensor, seed: int, may_be_empty: bool) -> Tensor:
    """The same number of allowed pairs at other positions, by one order for all distances.

    Where no class token is there for a query that sees no patch, each query keeps the first of its pairs.
    """
    order = seeded_order(patches.numel(), seed, "restricted attention")
    shuffled = torch.zeros(patches.numel(), dtype=torch.bool)
    if may_be_empty:
        shuffled[order] = patches.flatten()
        return shuffled.view_as(patches)
    ranks = torch.empty_like(order)
    ranks[order] = torch.arange(len(order))
    ranks = ranks.view_as(patches)
    first = ranks.argmin(1, keepdim=True)
    ranks = ranks.scatter(1, first, -1).flatten()
    shuffled[ranks.argsort(stable=True)[: int(patches.sum())]] = True
    return shuffled.view_as(patches)


def attention_layouts(model: nn.Module, x: Tensor) -> tuple[tuple[int, Layout], ...]:
    """Of the attention blocks whose queries and keys are all tokens of an image, by number; found by one pass.

    Blocks whose only queries are tokens without a position, such as a class token's own, are left out.
    """
    names = list(attention_blocks(model))
    tokens: dict[int, tuple[int, ...]] = {}
    scores_of: dict[int, tuple[int, ...]] = {}

    def enter(number: int, module: nn.Module, args: tuple[Any, ...]) -> None:
        tokens[number] = tuple(args[0].shape) if args and isinstance(args[0], Tensor) else ()

    def see(block: int, scores: Tensor, masked: Tensor) -> None:
        scores_of[block] = tuple(scores.shape)

    handles = [
        model.get_submodule(name).register_forward_pre_hook(partial(enter, number)) for number, name in enumerate(names)
    ]
    try:
        with torch.no_grad(), probing(model, ScoreObserver(see)):
            model(x)
    finally:
        for handle in handles:
            handle.remove()
    found = []
    for number, name in enumerate(names):
        layout = _layout(model, x, tokens.get(number, ()), scores_of.get(number, ()), name)
        if layout is not None:
            found.append((number, layout))
    if not found:
        raise UserError("no attention block has all patches of an image as queries and keys")
    return tuple(found)


def _layout(model: nn.Module, x: Tensor, tokens: tuple[int, ...], scores: tuple[int, ...], name: str) -> Layout | None:
    kind = type(model.get_submodule(name)).__name__
    if len(scores) != 4 or len(tokens) != 3 or "XCA" in kind or scores[-1] != tokens[1]:
        raise UserError(f"{name} ({kind}): its scores {scores} aren't of pairs of tokens, so none of them is distant")
    if scores[0] != len(x) or tokens[0] != len(x):
        raise UserError(f"{name} ({kind}): attends within windows, so that a distance in the image means nothing")
    if scores[-2] != scores[-1]:
        if scores[-2] > max(1, getattr(network_of(model), "num_prefix_tokens", 1)):
            raise UserError(f"{name} ({kind}): its queries are some of the patches, whose positions are unknown")
        return None
    layout = layout_of(model, tokens, (x.shape[2], x.shape[3]))
    if layout is None:
        raise UserError(f"{name} ({kind}): its {tokens[1]} tokens are no grid, with or without tokens before it")
    return layout

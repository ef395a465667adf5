"""The scores of every attention block before their softmax: to scale, to mask or to record them.

One mechanism for all families: while an attention block runs, its softmax (or the fused attention that holds one) is
caught. What a block computes otherwise is untouched, and so are the weights and their names.
"""

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from robustvit.core.errors import UserError
from robustvit.models.attention_masks import as_added, as_numbers
from robustvit.models.modes import temporarily

Edit = Callable[[int, Tensor], Tensor]
"""(number of the block, its scores (..., queries, keys) without masks) -> the scores to use instead."""
_ATTENTION = re.compile(r"Attention(?!.*(?:Block|Layer|Pool2d))|Attn(?!Block|Layer)|XCA$|(?:MH|GP|SH)SA$")
_NOT_SCORES = re.compile(r"SplitAttn|Eca|Cbam|Bam|SelectiveKernel|NonLocal|Bilinear|^Spatial")
"""Attention of other kinds: weights over channels or branches, no scores of queries and keys."""
_FUSED = F.scaled_dot_product_attention
_CAUGHT = {torch.softmax, F.softmax, Tensor.softmax, _FUSED}
_FORBIDS = -50.0
"""A mask of this much or less forbids a pair; timm masks other windows by -100."""


@dataclass(frozen=True)
class Scaling:
    """Each block's scores times its factor; masks never, or forbidden pairs would be let in."""

    factors: Tensor
    """(blocks,); gradients flow to it."""

    def __call__(self, block: int, scores: Tensor) -> Tensor:
        return scores * self.factors[block].to(scores.device, scores.dtype)  # or float32 would widen bfloat16


@dataclass(frozen=True)
class ScoreObserver:
    """Sees each block's scores as its softmax gets them, and changes nothing."""

    see: Callable[[int, Tensor, Tensor], None]
    """(number of the block, its scores with masks, which of them a mask forbids)."""

    def __call__(self, block: int, scores: Tensor) -> Tensor:
        return scores  # observed once the masks are back


SCALED_LOGITS = "an attack can scale the logits of such a model instead, as aas-pgd-100:where=logits,factors=0.1 does"
"""What is left where there is no attention."""


class NoAttentionError(UserError):
    """A network has no attention block; whoever asked for them says what that means."""


def attention_blocks(model: nn.Module) -> dict[str, nn.Module]:
    """The modules that compute attention, by name, in the model's order."""
    if any(map(_is_compiled, model.modules())):
        raise UserError(
            "the attention of a compiled or scripted model can't be reached (hooks on it are ignored): give the module "
            "as it was before torch.compile or torch.jit.script, and recipes compile: false"
        )
    blocks = {name: module for name, module in model.named_modules() if is_attention(type(module).__name__)}
    outer = {name for name in blocks if any(other.startswith(f"{name}.") for other in blocks)}
    if not blocks:
        raise NoAttentionError(
            f"{network_name(model)} has no attention block (a module whose name says Attention, Attn or XCA)"
        )
    return {name: module for name, module in blocks.items() if name not in outer}


def scalable_blocks(model: nn.Module) -> dict[str, nn.Module]:
    """As `attention_blocks`, for whoever scales them."""
    try:
        return attention_blocks(model)
    except NoAttentionError as error:
        raise UserError(f"{error}, so no attention to scale; {SCALED_LOGITS}") from None


@dataclass
class Probe:
    """Edits at work on a model."""

    handles: list[Any] = field(default_factory=list)
    is_paused: bool = False
    running: int = 0
    """How many blocks are, and modules whose softmax is no attention."""

    def paused(self) -> AbstractContextManager[None]:
        """Within, the model is as if it weren't probed."""
        return temporarily([self], "is_paused", True)


@contextmanager
def probing(model: nn.Module, *edits: Edit) -> Iterator[Probe]:
    """Within, every attention block's scores pass through the edits, in order; one inside another sees what the outer
    one, or factors of the model's own, made of them.

    With gradient checkpointing the backward pass must run within, too.
    """
    probe = install(model, edits)
    try:
        yield probe
    finally:
        for handle in probe.handles:
            handle.remove()


def install(model: nn.Module, edits: Sequence[Edit]) -> Probe:
    """As `probing`, until it is removed; copies and pickles of the model keep it."""
    blocks = (scalable_blocks if any(isinstance(edit, Scaling) for edit in edits) else attention_blocks)(model)
    for edit in edits:
        if isinstance(edit, Scaling) and edit.factors.shape != (len(blocks),):
            raise UserError(
                f"{network_name(model)}: has {len(blocks)} attention blocks, the factors are {len(edit.factors)}: "
                "they belong to another model"
            )
    probe = Probe()
    hooked: list[tuple[nn.Module, _StrayCheck | _Block | _NotAttention]] = [(model, _StrayCheck(probe))]
    hooked += [(part, _NotAttention(probe)) for part in model.modules() if getattr(part, "not_attention", False)]
    for number, (name, module) in enumerate(blocks.items()):
        arguments = tuple(inspect.signature(module.forward).parameters)
        title = f"{name} ({type(module).__name__})"
        hooked.append((module, _Block(number, title, tuple(edits), arguments, probe)))
    for module, hooks in hooked:
        probe.handles.append(module.register_forward_pre_hook(hooks.enter, prepend=True, with_kwargs=True))
        probe.handles.append(module.register_forward_hook(hooks.leave, always_call=True))
    return probe


def network_name(model: nn.Module) -> str:
    """The network's own name, not that of a layer around it."""
    return type(getattr(model, "backbone", model)).__name__


def is_attention(name: str) -> bool:
    return bool(_ATTENTION.search(name)) and not _NOT_SCORES.search(name)


def _is_compiled(module: nn.Module) -> bool:
    compiled = isinstance(module, torch.jit.ScriptModule) or type(module).__name__ == "OptimizedModule"
    return compiled or getattr(module, "_compiled_call_impl", None) is not None


@dataclass(eq=False)
class _StrayCheck(TorchFunctionMode):
    """On the first pass of a model: attention outside of known blocks would go unnoticed."""

    probe: Probe
    is_done: bool = False
    is_running: bool = False

    def enter(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if not (self.is_done or self.is_running or self.probe.is_paused):
            self.is_running = True
            self.__enter__()  # type: ignore[no-untyped-call]

    def leave(self, module: nn.Module, args: Any, output: Any) -> None:
        if self.is_running:
            self.__exit__(None, None, None)  # type: ignore[no-untyped-call]
            self.is_running, self.is_done = False, output is not None

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in _CAUGHT and not self.probe.running:
            raise UserError(
                "the model computes a softmax outside of every module whose name says Attention, Attn or XCA: its "
                "attention can't be reached as a whole"
            )
        return function(*args, **(kwargs or {}))


@dataclass(eq=False)
class _NotAttention:
    """A module that says `not_attention` of itself: its softmax is a gate, a pool or the like, and is left alone."""

    probe: Probe
    is_running: bool = False

    def enter(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if not self.probe.is_paused:
            self.is_running = True
            self.probe.running += 1

    def leave(self, module: nn.Module, args: Any, output: Any) -> None:
        if self.is_running:
            self.is_running = False
            self.probe.running -= 1


@dataclass(eq=False)
class _Block(TorchFunctionMode):
    """One attention block: its softmax is caught while it runs."""

    number: int
    title: str
    edits: tuple[Edit, ...]
    arguments: tuple[str, ...]
    """Of its forward pass, by name."""
    probe: Probe
    mask: Tensor | None = None
    """Of the call that is running."""
    caught: int | None = None
    """Softmaxes of the call that is running; None: none is."""

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.probe.is_paused:
            return
        given = {**dict(zip(self.arguments, args, strict=False)), **kwargs}
        self.mask, self.caught = given.get("mask", given.get("attn_mask")), 0
        self.probe.running += 1
        self.__enter__()  # type: ignore[no-untyped-call]

    def leave(self, module: nn.Module, args: Any, output: Any) -> None:
        if self.caught is None:
            return
        self.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        self.probe.running -= 1
        caught, self.mask, self.caught = self.caught, None, None
        if output is not None and caught != 1:
            raise self.unreachable(f"{caught} softmaxes were caught where one was expected")

    def unreachable(self, why: str) -> UserError:
        return UserError(f"{self.title}: {why}: this kind of attention can't be reached")

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if function not in _CAUGHT:
            return function(*args, **kwargs)
        assert self.caught is not None, "only a running block is asked"
        self.caught += 1
        if function is _FUSED:
            return self._fused(*args, **kwargs)
        scores, *rest = (kwargs.pop("input"), *args) if "input" in kwargs else args
        axis = kwargs["dim"] if "dim" in kwargs else rest[0] if rest else None
        if axis not in (-1, scores.ndim - 1):
            raise self.unreachable(f"its softmax runs over axis {axis} of {scores.ndim} and not over keys")
        return function(self._edited(scores), *rest, **kwargs)

    def _edited(self, scores: Tensor) -> Tensor:
        """The mask is taken off before the edits and put back afterwards."""
        mask = None if self.mask is None else as_added(self.mask, scores)
        if mask is not None:
            infinite = torch.isinf(mask)
            finite = mask.masked_fill(infinite, 0)
            scores = scores.masked_fill(infinite, 0) - finite
        for edit in self.edits:
            scores = edit(self.number, scores)
        if mask is not None:
            scores = (scores + finite).masked_fill(infinite, -torch.inf)
        for edit in self.edits:
            if isinstance(edit, ScoreObserver):
                masked = torch.isneginf(scores)
                edit.see(self.number, scores, masked if mask is None else masked | (mask <= _FORBIDS))
        return scores

    def _fused(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        **options: Any,
    ) -> Tensor:
        if all(isinstance(edit, Scaling) for edit in self.edits):
            for edit in self.edits:
                query = edit(self.number, query)
            if attn_mask is not None and attn_mask.is_floating_point():
                attn_mask = self._edited(attn_mask)  # what isn't the mask in it is a position bias
            return _FUSED(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, **options)
        if options.get("enable_gqa"):
            raise UserError(f"{self.title}: shares keys among queries, which can be scaled but not observed")
        scores = (query @ key.mT) * (query.shape[-1] ** -0.5 if scale is None else scale)
        if is_causal:
            self.mask = attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).tril()
        scores = self._edited(scores if attn_mask is None else scores + as_numbers(attn_mask, scores))
        return F.dropout(torch.softmax(scores, -1), dropout_p) @ value


@contextmanager
def recording(model: nn.Module, names: Iterable[str]) -> Iterator[dict[str, Tensor]]:
    """Within, the dictionary holds what the modules of these names put out in the last forward pass."""
    outputs: dict[str, Tensor] = {}

    def keep(name: str, module: nn.Module, args: Any, output: Any) -> None:
        outputs[name] = output[0] if isinstance(output, tuple) else output

    handles = [model.get_submodule(name).register_forward_hook(partial(keep, name)) for name in names]
    try:
        yield outputs
    finally:
        for handle in handles:
            handle.remove()


def transformer_blocks(model: nn.Module) -> list[str]:
    """The modules around each attention, by name: what papers call a block."""
    return list(dict.fromkeys(name.rpartition(".")[0] for name in attention_blocks(model)))

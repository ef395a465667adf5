"""The scores of every attention block before their softmax: to scale, to mask or to record them.

One mechanism for all families: while an attention block runs, its softmax (or the fused attention that holds one) is
caught. What a block computes otherwise is untouched, and so are the weights and their names.
"""

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from robustvit.core.errors import UserError

Edit = Callable[[int, Tensor], Tensor]
"""(number of the block, its scores (..., queries, keys) without masks) -> the scores to use instead."""

_ATTENTION = re.compile(r"Attention(?!.*(?:Block|Layer|Pool2d))|Attn(?!Block|Layer)|XCA$|(?:MH|GP|SH)SA$")
_NOT_SCORES = re.compile(r"SplitAttn|Eca|Cbam|Bam|SelectiveKernel|NonLocal|Bilinear|^Spatial")
"""Attention of other kinds: weights over channels or branches, no scores of queries and keys."""
_SOFTMAX = {torch.softmax, F.softmax, Tensor.softmax}
_FUSED = F.scaled_dot_product_attention
FORBIDS = -50.0
"""A mask of this much or less forbids a pair; timm's windows are closed by -100."""


@dataclass(frozen=True)
class Scaling:
    """Each block's scores times its factor; masks never, or forbidden pairs would be let in."""

    factors: Tensor
    """(blocks,); gradients flow to it."""

    def __call__(self, block: int, scores: Tensor) -> Tensor:
        return scores * self.factor(block, scores)

    def factor(self, block: int, like: Tensor) -> Tensor:
        return self.factors[block].to(like.device, like.dtype)  # or float32 would widen bfloat16


@dataclass(frozen=True)
class Looking:
    """Sees each block's scores as its softmax gets them, and changes nothing."""

    see: Callable[[int, Tensor, Tensor], None]
    """(number of the block, its scores with masks, which of them a mask forbids)."""

    def __call__(self, block: int, scores: Tensor) -> Tensor:
        return scores  # told when the masks are back


def attention_blocks(model: nn.Module) -> dict[str, nn.Module]:
    """The modules that compute attention, by name, in the model's order."""
    if _is_compiled(model):
        raise UserError(
            "the attention of a compiled or scripted model can't be reached (hooks on it are ignored): give the module "
            "as it was before torch.compile or torch.jit.script"
        )
    found = {name: module for name, module in model.named_modules() if _is_attention(module)}
    inner = {name: module for name, module in found.items() if not any(other.startswith(f"{name}.") for other in found)}
    if not inner:
        raise UserError(
            f"{_title(model)}: has no attention block (a module whose name says Attention, Attn or XCA), so no "
            "attention to scale; an attack can scale the logits of such a model instead, as "
            "aas-pgd-100:where=logits,factors=0.1 does"
        )
    return inner


class Probe:
    """Edits at work on a model."""

    def __init__(self) -> None:
        self.is_paused = False
        self.handles: list[Any] = []
        self.inside = 0
        self.watched = False
        self.watch: TorchFunctionMode | None = None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Within, the model is as if it weren't probed."""
        self.is_paused = True
        try:
            yield
        finally:
            self.is_paused = False

    def remove(self) -> None:
        for handle in self.handles:
            handle.remove()

    def begin(self, module: nn.Module, args: Any) -> None:
        """The first pass is watched: attention outside of known blocks would go unnoticed."""
        if not self.watched and not self.is_paused:
            self.watch = _Strays(self)
            self.watch.__enter__()

    def end(self, module: nn.Module, args: Any, output: Any) -> None:
        if self.watch is not None:
            self.watch.__exit__(None, None, None)
            self.watch = None
            self.watched = output is not None


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
        probe.remove()


def install(model: nn.Module, edits: Sequence[Edit]) -> Probe:
    """As `probing`, until it is removed; copies and pickles of the model keep it."""
    blocks = attention_blocks(model)
    for edit in edits:
        if isinstance(edit, Scaling) and edit.factors.shape != (len(blocks),):
            raise UserError(
                f"{_title(model)}: has {len(blocks)} attention blocks, the factors are {len(edit.factors)}: "
                "they belong to another model"
            )
    probe = Probe()
    probe.handles = [
        model.register_forward_pre_hook(probe.begin, prepend=True),
        model.register_forward_hook(probe.end, always_call=True),
    ]
    for number, (name, module) in enumerate(blocks.items()):
        block = _Block(number, f"{name} ({type(module).__name__})", tuple(edits), _mask_argument(module), probe)
        probe.handles += [
            module.register_forward_pre_hook(block.enter, prepend=True, with_kwargs=True),
            module.register_forward_hook(block.leave, always_call=True),
        ]
    return probe


def _title(model: nn.Module) -> str:
    """The network's own name, not that of a layer around it."""
    return type(getattr(model, "backbone", model)).__name__


def _is_attention(module: nn.Module) -> bool:
    name = type(module).__name__
    return bool(_ATTENTION.search(name)) and not _NOT_SCORES.search(name)


def _is_compiled(model: nn.Module) -> bool:
    return any(
        isinstance(module, torch.jit.ScriptModule)
        or type(module).__name__ == "OptimizedModule"
        or getattr(module, "_compiled_call_impl", None) is not None
        for module in model.modules()
    )


def _mask_argument(module: nn.Module) -> tuple[int, str] | None:
    """Where the block's mask comes in: its place among the arguments, and its name."""
    for place, name in enumerate(inspect.signature(module.forward).parameters):
        if name in ("mask", "attn_mask"):
            return place, name
    return None


class _Strays(TorchFunctionMode):
    def __init__(self, probe: Probe) -> None:
        super().__init__()
        self.probe = probe

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if (function in _SOFTMAX or function is _FUSED) and not self.probe.inside:
            raise UserError(
                "the model computes a softmax outside of every module whose name says Attention, Attn or XCA: its "
                "attention can't be reached as a whole"
            )
        return function(*args, **(kwargs or {}))


@dataclass
class _Block:
    """One attention block: what is caught while it runs."""

    number: int
    title: str
    edits: tuple[Edit, ...]
    mask_argument: tuple[int, str] | None
    probe: Probe
    running: list["_Catch"] = field(default_factory=list)

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.probe.is_paused:
            return
        mask = None
        if self.mask_argument is not None:
            place, name = self.mask_argument
            mask = kwargs.get(name, args[place] if place < len(args) else None)
        catch = _Catch(self, mask)
        self.running.append(catch)
        self.probe.inside += 1
        catch.__enter__()

    def leave(self, module: nn.Module, args: Any, output: Any) -> None:
        if not self.running:
            return
        catch = self.running.pop()
        catch.__exit__(None, None, None)
        self.probe.inside -= 1
        if output is not None and catch.caught != 1:
            raise UserError(
                f"{self.title}: {catch.caught} softmaxes were caught where one was expected: this kind of attention "
                "can't be reached"
            )


class _Catch(TorchFunctionMode):
    """Stands between a block and its softmax."""

    def __init__(self, block: _Block, mask: Tensor | None) -> None:
        super().__init__()
        self.block, self.mask, self.caught = block, mask, 0

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if function in _SOFTMAX:
            self.caught += 1
            scores, rest = (kwargs.pop("input"), args) if "input" in kwargs else (args[0], args[1:])
            axis = kwargs["dim"] if "dim" in kwargs else rest[0] if rest else None
            if axis not in (-1, scores.ndim - 1):
                raise UserError(
                    f"{self.block.title}: its softmax runs over axis {axis} of {scores.ndim} and not over keys: this "
                    "kind of attention can't be reached"
                )
            return function(self._edited(scores), *rest, **kwargs)
        if function is _FUSED:
            self.caught += 1
            return self._fused(*args, **kwargs)
        return function(*args, **kwargs)

    def _edited(self, scores: Tensor) -> Tensor:
        """Masks are taken off before the edits and put back afterwards."""
        mask = _additive(self.mask, scores)
        edited = self._around(mask, scores)
        lookers = [edit for edit in self.block.edits if isinstance(edit, Looking)]
        if lookers:
            closed = torch.isneginf(edited)
            closed = closed if mask is None else closed | (mask <= FORBIDS)
        for edit in lookers:
            edit.see(self.block.number, edited, closed)
        return edited

    def _around(self, mask: Tensor | None, scores: Tensor) -> Tensor:
        if mask is None:
            return self._through(scores)
        closed = torch.isinf(mask)
        if not bool(closed.any()):
            return self._through(scores - mask) + mask
        finite = mask.masked_fill(closed, 0)
        bare = scores.masked_fill(closed, 0) - finite
        return (self._through(bare) + finite).masked_fill(closed, -torch.inf)

    def _through(self, scores: Tensor) -> Tensor:
        for edit in self.block.edits:
            scores = edit(self.block.number, scores)
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
        if all(isinstance(edit, Scaling) for edit in self.block.edits):
            for edit in self.block.edits:
                query = query * edit.factor(self.block.number, query)  # type: ignore[attr-defined]
            if attn_mask is not None and attn_mask.is_floating_point():
                attn_mask = self._edited(attn_mask)  # what isn't the mask in it is a position bias
            return _FUSED(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, **options)
        if options.get("enable_gqa"):
            raise UserError(f"{self.block.title}: shares keys among queries, which can be scaled but not looked into")
        scores = (query @ key.mT) * (query.shape[-1] ** -0.5 if scale is None else scale)
        if is_causal:
            attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).tril()
            self.mask = attn_mask
        scores = self._edited(scores if attn_mask is None else scores + _as_numbers(attn_mask, scores))
        return F.dropout(torch.softmax(scores, -1), dropout_p) @ value


def _additive(mask: Tensor | None, scores: Tensor) -> Tensor | None:
    """A block's own mask as it was added to the scores: one for each window, or for all."""
    if mask is None:
        return None
    mask = _as_numbers(mask, scores)
    if mask.ndim == 3 and scores.ndim == 4:  # (windows, N, N) against (images * windows, heads, N, N)
        mask = mask.repeat(len(scores) // len(mask), 1, 1)[:, None]
    return mask.to(scores.dtype)


def _as_numbers(mask: Tensor, scores: Tensor) -> Tensor:
    """What is added: of a mask of truths, nothing where it is true."""
    if mask.dtype == torch.bool:
        return torch.zeros(mask.shape, dtype=scores.dtype, device=mask.device).masked_fill(~mask, -torch.inf)
    return mask

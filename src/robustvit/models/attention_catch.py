"""What passes through one attention block while it runs: its softmax, or the fused attention that holds one."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from robustvit.core.errors import UserError

Edit = Callable[[int, Tensor], Tensor]
"""(number of the block, its scores (..., queries, keys) without masks) -> the scores to use instead."""
SOFTMAX = {torch.softmax, F.softmax, Tensor.softmax}
FUSED = F.scaled_dot_product_attention
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
        return scores  # observed once the masks are back


class State(Protocol):
    """What the blocks of one probe share."""

    is_paused: bool
    inside: int
    """How many blocks are running."""


@dataclass
class CaughtBlock:
    """One attention block: what is caught while it runs."""

    number: int
    title: str
    edits: tuple[Edit, ...]
    mask_argument: tuple[int, str] | None
    probe: State
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
        catch.__enter__()  # type: ignore[no-untyped-call]

    def leave(self, module: nn.Module, args: Any, output: Any) -> None:
        if not self.running:
            return
        catch = self.running.pop()
        catch.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        self.probe.inside -= 1
        if output is not None and catch.caught != 1:
            raise UserError(
                f"{self.title}: {catch.caught} softmaxes were caught where one was expected: this kind of attention "
                "can't be reached"
            )


class _Catch(TorchFunctionMode):
    """Stands between a block and its softmax."""

    def __init__(self, block: CaughtBlock, mask: Tensor | None) -> None:
        super().__init__()
        self.block, self.mask, self.caught = block, mask, 0

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if function in SOFTMAX:
            self.caught += 1
            scores, rest = (kwargs.pop("input"), args) if "input" in kwargs else (args[0], args[1:])
            axis = kwargs["dim"] if "dim" in kwargs else rest[0] if rest else None
            if axis not in (-1, scores.ndim - 1):
                raise UserError(
                    f"{self.block.title}: its softmax runs over axis {axis} of {scores.ndim} and not over keys: this "
                    "kind of attention can't be reached"
                )
            return function(self._edited(scores), *rest, **kwargs)
        if function is FUSED:
            self.caught += 1
            return self._fused(*args, **kwargs)
        return function(*args, **kwargs)

    def _edited(self, scores: Tensor) -> Tensor:
        """Masks are taken off before the edits and put back afterwards."""
        mask = _additive(self.mask, scores)
        edited = self._around(mask, scores)
        observers = [edit for edit in self.block.edits if isinstance(edit, Looking)]
        if observers:
            closed = torch.isneginf(edited)
            closed = closed if mask is None else closed | (mask <= FORBIDS)
        for edit in observers:
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
            return FUSED(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, **options)
        if options.get("enable_gqa"):
            raise UserError(f"{self.block.title}: shares keys among queries, which can be scaled but not observed")
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

"""The scores of every attention block before their softmax: to scale, to mask or to record them.

One mechanism for all families: while an attention block runs, its softmax (or the fused attention that holds one) is
caught. What a block computes otherwise is untouched, and so are the weights and their names.
"""

import inspect
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from robustvit.core.errors import UserError
from robustvit.models.attention_catch import FUSED, SOFTMAX, CaughtBlock, Edit, Looking, Scaling

__all__ = ["Edit", "Looking", "Probe", "Scaling", "attention_blocks", "install", "probing"]

_ATTENTION = re.compile(r"Attention(?!.*(?:Block|Layer|Pool2d))|Attn(?!Block|Layer)|XCA$|(?:MH|GP|SH)SA$")
_NOT_SCORES = re.compile(r"SplitAttn|Eca|Cbam|Bam|SelectiveKernel|NonLocal|Bilinear|^Spatial")
"""Attention of other kinds: weights over channels or branches, no scores of queries and keys."""


def attention_blocks(model: nn.Module) -> dict[str, nn.Module]:
    """The modules that compute attention, by name, in the model's order."""
    if _is_compiled(model):
        raise UserError(
            "the attention of a compiled or scripted model can't be reached (hooks on it are ignored): give the module "
            "as it was before torch.compile or torch.jit.script"
        )
    blocks = {name: module for name, module in model.named_modules() if _is_attention(module)}
    inner = {
        name: module for name, module in blocks.items() if not any(other.startswith(f"{name}.") for other in blocks)
    }
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
            self.watch.__enter__()  # type: ignore[no-untyped-call]

    def end(self, module: nn.Module, args: Any, output: Any) -> None:
        if self.watch is not None:
            self.watch.__exit__(None, None, None)  # type: ignore[no-untyped-call]
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
        block = CaughtBlock(number, f"{name} ({type(module).__name__})", tuple(edits), _mask_argument(module), probe)
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
        if (function in SOFTMAX or function is FUSED) and not self.probe.inside:
            raise UserError(
                "the model computes a softmax outside of every module whose name says Attention, Attn or XCA: its "
                "attention can't be reached as a whole"
            )
        return function(*args, **(kwargs or {}))

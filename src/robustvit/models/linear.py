"""Linear layers of float32 by oneDNN on processors where MKL computes at half of their speed.

On AMD's processors with AVX-512, the MKL that torch is built with takes its kernels for AVX2. Convolutions go through
oneDNN anyway. What is chosen follows from the processor and from torch alone, never from a measurement, so that a run
that goes on has the same bits; a row's bits don't depend on how many rows there are, except for a single one.
"""

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from robustvit.core.run import processor
from robustvit.models.modes import set_forward, with_forward

SMALL = 2**14
"""Weights of a layer up to which calling oneDNN takes as long as it saves."""


def _operations(x: Sequence[int], weight: Sequence[int], *args: Any, **kwargs: Any) -> int:
    return 2 * math.prod(x) * weight[0]


FLOPS = {torch.ops.mkldnn._linear_pointwise: _operations} if hasattr(torch.ops.mkldnn, "_linear_pointwise") else {}
"""What torch's counter of operations lacks, by the shapes of the arguments."""


@cache
def is_faster() -> bool:
    """Whether oneDNN is the faster one here."""
    return (
        torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and torch.backends.cpu.get_cpu_capability() == "AVX512"
        and "AMD" in processor()
        and bool(FLOPS)
    )


def speed_up_linear(model: nn.Module) -> None:
    """From now on the linear layers of a model, and of its copies, compute by whatever is faster here."""
    set_forward(_layers(model), _forward)


def fast_linear(model: object) -> AbstractContextManager[None]:
    """The same within alone."""
    return with_forward(_layers(model), _forward)


def _layers(model: object) -> list[nn.Module]:
    if not isinstance(model, nn.Module) or not is_faster():
        return []
    return [module for module in model.modules() if type(module).forward is nn.Linear.forward]


def _forward(kind: type[nn.Module]) -> Any:
    def forward(self: nn.Linear, input: Tensor) -> Tensor:
        x, weight = input, self.weight  # whose name is torch's
        if torch.compiler.is_compiling() or not (
            x.device.type == "cpu"
            and x.dtype == weight.dtype == torch.float32
            and x.ndim > 1
            and weight.numel() > SMALL
            and x.numel() > 0
            and type(weight) in (nn.Parameter, Tensor)  # not one that is spread over processes
            and not torch.is_autocast_enabled("cpu")
            and not torch.jit.is_tracing()  # type: ignore[attr-defined,no-untyped-call]
        ):
            return F.linear(x, weight, self.bias)
        made: Tensor = _Product.apply(x, weight, self.bias)
        return made

    return forward


class _Product(torch.autograd.Function):
    """`x @ weight.T + bias`. Its gradients are products, too, so that it can be differentiated again."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        made: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
        return made

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, weight, _ = inputs
        needs_x, needs_weight, _ = ctx.needs_input_grad
        ctx.save_for_backward(x if needs_weight else None, weight if needs_x else None)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        (gradient,) = gradients
        x, weight = ctx.saved_tensors
        of_x = of_weight = of_bias = None
        if ctx.needs_input_grad[0]:
            of_x = _Product.apply(gradient, weight.t(), None)
        if ctx.needs_input_grad[1]:
            of_weight = _Product.apply(gradient.flatten(0, -2).t(), x.flatten(0, -2).t(), None)
        if ctx.needs_input_grad[2]:
            of_bias = gradient.flatten(0, -2).sum(0)
        return of_x, of_weight, of_bias

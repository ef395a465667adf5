"""Linear layers of float32 by oneDNN on processors where MKL computes at half of their speed.

On AMD's processors with AVX-512, the MKL that torch is built with takes its kernels for AVX2. Convolutions go through
oneDNN anyway. What is chosen follows from the processor and from torch alone, never from a measurement, so that a
resumed run has the same bits; a row's bits don't depend on how many rows there are, except for a single one.
"""

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import forward_ad

from robustvit.core.run import processor
from robustvit.models.modes import set_forward, with_forward

SMALL = 2**14
"""Weights of a layer up to which calling oneDNN takes as long as it saves, at a few hundred rows."""


def _operations(x: Sequence[int], weight: Sequence[int], *args: Any, **kwargs: Any) -> int:
    return 2 * math.prod(x) * weight[0]


FLOPS = {torch.ops.mkldnn._linear_pointwise: _operations} if hasattr(torch.ops.mkldnn, "_linear_pointwise") else {}
"""What torch's counter of operations lacks, by the shapes of the arguments."""


@cache
def is_faster() -> bool:
    """Whether oneDNN multiplies faster than torch on this processor."""
    return (
        bool(FLOPS)
        and torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and torch.backends.cpu.get_cpu_capability() == "AVX512"
        and processor().startswith("AMD ")  # not AMD64, which Windows calls Intel's, too
    )


def speed_up_linear(model: nn.Module) -> None:
    """From now on the linear layers of a model and of its copies use oneDNN where it is faster."""
    set_forward(_layers(model), _forward)


def fast_linear(model: object) -> AbstractContextManager[None]:
    """The same, but only inside the `with` block."""
    return with_forward(_layers(model), _forward)


def _layers(model: object) -> list[nn.Module]:
    if not isinstance(model, nn.Module) or not is_faster():
        return []
    linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
    return [layer for layer in linear if type(layer).forward is nn.Linear.forward]


def _forward(kind: Any) -> Any:
    def forward(self: nn.Linear, input: Tensor) -> Tensor:  # the name that torch has for it
        if not torch.compiler.is_compiling() and _suits(input, self.weight, self.bias):
            return _product(input, self.weight, self.bias)
        made: Tensor = kind.forward(self, input)
        return made

    return forward


def _suits(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether it is a plain product of float32 on a CPU, large enough to gain; torch has the messages for the rest."""
    return (
        is_faster()
        and not torch.jit.is_tracing()  # type: ignore[attr-defined,no-untyped-call]
        and weight.numel() > SMALL
        and x.device.type == "cpu"
        and x.dtype == weight.dtype == torch.float32
        and x.layout == weight.layout == torch.strided
        and not x.is_nested
        and x.ndim > 1
        and x.numel() > 0
        and weight.is_contiguous()
        and x.shape[-1] == weight.shape[1]
        and (bias is None or (bias.dtype == torch.float32 and bias.shape == weight.shape[:1]))
        and type(weight) in (nn.Parameter, Tensor)  # not one that is spread over processes
        and not torch.is_autocast_enabled("cpu")
        and forward_ad._current_level < 0
    )


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if torch._C._are_functorch_transforms_active():  # torch.func and batched gradients
        return F.linear(x, weight, bias)
    made: Tensor = _Product.apply(x, weight, bias)
    return made


class _Product(torch.autograd.Function):
    """`x @ weight.T + bias`. Its gradients are products, too, so that it can be differentiated again."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if bias is not None:
            bias = bias.contiguous()  # oneDNN reads it without strides
        made: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
        return made

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, weight, _ = inputs
        ctx.save_for_backward(x if ctx.needs_input_grad[1] else None, weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        (gradient,) = gradients
        x, weight = ctx.saved_tensors
        of_x = of_weight = of_bias = None
        if ctx.needs_input_grad[0]:
            of_x = _product(gradient, weight.t(), None)
        if ctx.needs_input_grad[1]:
            of_weight = _product(_rows(gradient).t(), _rows(x).t(), None)
        if ctx.needs_input_grad[2]:
            of_bias = _rows(gradient).sum(0)
        return of_x, of_weight, of_bias


def _rows(x: Tensor) -> Tensor:
    """(..., D) as a matrix whose rows don't overlap."""
    return x.reshape(-1, x.shape[-1]).contiguous()

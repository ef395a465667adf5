"""How a model computes: in which precision, whether activations are kept, whether it is compiled.

Weights, pixels, logits and gradients are float32 whatever the precision. All of it is a property of the model, so that
attacks, objectives and wrappers call it as ever.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

from robustvit.core.errors import UserError
from robustvit.models.layout import feature_blocks
from robustvit.models.linear import speed_up_linear
from robustvit.models.modes import set_forward, temporarily, with_forward
from robustvit.models.normalize import Normalized, backbone_of

Precision = Literal["float32", "tf32", "bf16"]
AMPERE = (8, 0)
"""The first compute capability with TF32."""
SLOWER = 1.1
"""Times float32 from which a precision is reported as slower."""
_SOFTMAX = {torch.softmax, F.softmax, Tensor.softmax}


def matrix_products(precision: Precision = "float32", backends: Any = torch.backends) -> AbstractContextManager[None]:
    """Products of float32 matrices on a GPU: in TF32 only where it is asked for, not by default in convolutions."""
    is_rounded = precision == "tf32"
    if hasattr(backends.cudnn, "conv"):  # torch 2.9 and later
        kind = "tf32" if is_rounded else "ieee"
        return temporarily([backends.cudnn.conv, backends.cuda.matmul], "fp32_precision", kind)
    return temporarily([backends.cudnn, backends.cuda.matmul], "allow_tf32", is_rounded)


class _SoftmaxInFloat32(TorchFunctionMode):
    """As autocast has it on a GPU, but not on a CPU, where fused attention is taken apart, too."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is F.scaled_dot_product_attention:
            return _attention(*args, **kwargs)
        if func is F.multi_head_attention_forward:  # of nn.MultiheadAttention, within which this mode is off
            with torch.autocast("cpu", enabled=False):
                return func(*map(_in_float32, args), **{name: _in_float32(value) for name, value in kwargs.items()})
        if func in _SOFTMAX and kwargs.get("dtype") is None and args and args[0].dtype == torch.bfloat16:
            kwargs["dtype"] = torch.float32
        return func(*args, **kwargs)


def _in_float32(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.dtype == torch.bfloat16 else value


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Fused attention in bfloat16 on a CPU takes several times as long for its gradient as this or as float32 does."""
    if attn_mask is not None or dropout_p or is_causal or enable_gqa:
        query, key, value = query.float(), key.float(), value.float()
        mask = attn_mask.float() if attn_mask is not None and attn_mask.is_floating_point() else attn_mask
        with torch.autocast("cpu", enabled=False):
            return F.scaled_dot_product_attention(
                query, key, value, mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
            )
    scores = query * (query.shape[-1] ** -0.5 if scale is None else scale) @ key.mT  # (B, heads, N, N)
    return scores.softmax(-1, dtype=torch.float32).to(value.dtype) @ value


@contextmanager
def autocasting(device: str) -> Iterator[None]:
    """Matrix products and convolutions in bfloat16 within, softmax in float32."""
    with ExitStack() as stack:
        stack.enter_context(torch.autocast(device, torch.bfloat16))
        if device == "cpu":
            stack.enter_context(_SoftmaxInFloat32())
        yield


def compute_in(model: Normalized, precision: Precision, shard: bool = False) -> None:
    """From now on its passes are in this precision; copies of the model keep it. Matrices: see `matrix_products`."""
    if not shard:  # a search can't freeze sharded weights, and fast layers would compute their gradients
        speed_up_linear(model)
    if precision == "bf16":
        set_forward(float32_modules(model), _float32_forward)
        model.autocast = autocasting


def in_float32(model: nn.Module) -> AbstractContextManager[None]:
    """A model that computes in another precision does so in float32 within."""
    return temporarily([model] if isinstance(model, Normalized) else [], "autocast", None)


def keeping_float32(model: object) -> AbstractContextManager[None]:
    """Within, stem, norms and heads compute in float32 even where autocast reigns."""
    return with_forward(float32_modules(model) if isinstance(model, nn.Module) else [], _float32_forward)


def float32_modules(model: nn.Module) -> list[nn.Module]:
    """Those whose rounding would be lost on all that follows, or on the logits."""
    named = [(name, module) for name, module in backbone_of(model).named_modules() if name]
    stems = [
        module.get_submodule(getattr(module, "first_layer", ""))  # of one that has blocks of its own
        for name, module in named
        if name.rpartition(".")[2] in ("patch_embed", "stem")
    ]
    layers = [module for _, module in named if isinstance(module, nn.Linear | nn.Conv2d)]
    norms = [module for _, module in named if isinstance(module, _NormBase | nn.LayerNorm | nn.GroupNorm | nn.RMSNorm)]
    heads = [module for name, module in named if _is_head(name) and isinstance(module, nn.Linear)]
    found = [*(stems or layers[:1]), *norms, *(heads or layers[-1:])]
    return list({id(module): module for module in found}.values())


def _is_head(name: str) -> bool:
    """`head`, `head_dist`, or one of several `heads`."""
    parent, _, own = name.rpartition(".")
    return "head" in own or parent.rpartition(".")[2] == "heads"


def checkpoint_activations(model: nn.Module) -> None:
    """From now on each block keeps its input alone, and computes the rest again in the backward pass."""
    blocks = set(feature_blocks(model))
    set_forward([module for name, module in model.named_modules() if name in blocks], _checkpointed_forward)


def _float32_forward(kind: type[nn.Module]) -> Any:
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        args = tuple(map(_in_float32, args))
        device = next((arg.device.type for arg in args if isinstance(arg, Tensor)), "cpu")
        with torch.autocast(device, enabled=False):
            return kind.forward(self, *args, **kwargs)

    return forward


def _checkpointed_forward(kind: type[nn.Module]) -> Any:
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return kind.forward(self, *args, **kwargs)

        def contexts() -> Any:
            return nullcontext(), _computing_again(self, torch.is_autocast_enabled("cpu"))

        return checkpoint(partial(kind.forward, self), *args, use_reentrant=False, context_fn=contexts, **kwargs)

    return forward


@contextmanager
def _computing_again(module: nn.Module, casts_softmax: bool) -> Iterator[None]:
    """With what torch doesn't repeat of the first time."""
    before = [buffer.clone() for buffer in module.buffers()]  # running statistics have seen this batch
    try:
        with _SoftmaxInFloat32() if casts_softmax else nullcontext():
            yield
    finally:
        with torch.no_grad():
            for buffer, value in zip(module.buffers(), before, strict=True):
                buffer.copy_(value)


def compile_network(model: Normalized) -> None:
    """In place, at its first pass; each mode and each set of trained parameters is compiled by itself."""
    model.backbone.compile()


def check_precision(precision: Precision, device: str) -> None:
    """Refuse what the device would silently compute in float32."""
    is_cuda = torch.device(device).type == "cuda"
    if precision == "tf32" and not (is_cuda and torch.cuda.get_device_capability(device) >= AMPERE):
        raise UserError(f"recipe.precision: '{device}' has no TF32 (NVIDIA GPUs since Ampere have); use float32 here")


def slower_by(
    low: Callable[[Tensor], Tensor], full: Callable[[Tensor], Tensor], x: Tensor, precision: Precision = "bf16"
) -> str:
    """What to say of a precision whose gradient of the pixels takes longer than that of float32; else empty."""

    def seconds(model: Callable[[Tensor], Tensor], products: Precision) -> float:
        times = []
        for _ in range(2):  # the first may have to allocate
            point, begin = x.clone().requires_grad_(), time.perf_counter()
            with matrix_products(products):
                (gradient,) = torch.autograd.grad(model(point).square().sum(), point)
            float(gradient.sum())  # waits for the device
            times.append(time.perf_counter() - begin)
        return min(times)

    ratio = seconds(low, precision) / seconds(full, "float32")
    if ratio < SLOWER:
        return ""
    return (
        f"precision {precision}: a pass takes {ratio:.2g} times as long as in float32 here; use float32 on this device"
    )

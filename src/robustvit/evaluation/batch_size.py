"""How many images at once, where the user doesn't say: no verdict depends on it, but memory and time do."""

import torch
from torch import Tensor, nn

from robustvit.attacks.base import Classifier

LEAST, MOST, MOST_CUDA = 8, 128, 1024
"""Below 8 rows float32 kernels round otherwise."""
CPU_BYTES = 1 << 30
"""Kept for the backward pass; with more, a CPU spends its time on fresh pages."""


def batch_size_by_memory(model: Classifier, x: Tensor) -> int:
    """A power of two whose activations fit: in 1 GiB on a CPU, in half of the free memory of a GPU."""
    most, budget = MOST, CPU_BYTES
    if x.device.type == "cuda":
        most, budget = MOST_CUDA, torch.cuda.mem_get_info(x.device)[0] // 2
    size, needed = LEAST, bytes_per_image(model, x[:2])
    while size < most and 2 * size * needed <= budget:
        size *= 2
    return size


def bytes_per_image(model: Classifier, x: Tensor) -> int:
    """What autograd keeps of a forward pass for the backward pass, without the weights."""
    weights = model.parameters() if isinstance(model, nn.Module) else ()
    known = {weight.untyped_storage().data_ptr() for weight in weights}
    kept: dict[int, Tensor] = {}  # the tensors themselves, so that no storage is freed and its address used again

    def pack(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() not in known:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(x.detach().requires_grad_())
    return max(1, sum(tensor.untyped_storage().nbytes() for tensor in kept.values()) // len(x))

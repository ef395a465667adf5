"""How many images at once: no verdict depends on it, but memory and time do."""

from collections.abc import Callable, Iterator
from typing import TypeVar

import torch
from torch import Tensor, nn

from robustvit.attacks.base import Classifier
from robustvit.core.errors import UserError, first_line
from robustvit.core.result import ResultWarning
from robustvit.core.world import is_out_of_memory

T = TypeVar("T")

LEAST, MOST, MOST_CUDA = 8, 128, 1024
"""Below 8 rows float32 kernels round otherwise."""
CPU_BYTES = 1 << 30
"""Kept for the backward pass; with more, a CPU spends its time on fresh pages."""


def batch_size_by_memory(model: Classifier, x: Tensor) -> int:
    """A power of two whose activations fit: in 1 GiB on a CPU, in half of the free memory of a GPU."""
    most, budget = MOST, CPU_BYTES
    if x.device.type == "cuda":
        most, budget = MOST_CUDA, torch.cuda.mem_get_info(x.device)[0] // 2
    try:
        size, needed = LEAST, bytes_per_image(model, x[:2])
    except Exception as error:  # one that can't be differentiated keeps nothing; attacks that need it say so themselves
        return LEAST if is_out_of_memory(error) else MOST
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


def batches(images: list[int], size: int) -> list[Tensor]:
    return [torch.tensor(images[i : i + size]) for i in range(0, len(images), size)]


def in_memory(
    batch: Tensor, work: Callable[[Tensor], T], warn: Callable[[ResultWarning], None]
) -> Iterator[tuple[Tensor, T]]:
    """The work's outcome for a batch; out of memory, for its halves: no verdict depends on the batch."""
    try:
        done = work(batch)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        if len(batch) == 1:
            raise UserError(f"out of memory with a single image: {first_line(error)}") from None
    else:
        yield batch, done
        return
    half = len(batch) // 2
    observation = f"out of memory with batches of {len(batch)}: they were halved"
    warn(ResultWarning("out-of-memory", observation, f"--batch-size {half} saves the attempts"))
    for part in (batch[:half], batch[half:]):
        yield from in_memory(part, work, warn)

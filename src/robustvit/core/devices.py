"""Devices by their name, and their memory."""

import torch
from torch import nn

from robustvit.core.errors import UserError, first_line


def resolve_device(name: str = "auto", model: object = None) -> str:
    """`auto`: the accelerator that holds the model, else cuda where there is one, else cpu; mps must be named."""
    if name == "auto":
        held = model_device(model) or "cpu"
        is_accelerated = held.partition(":")[0] not in ("cpu", "meta")
        name = held if is_accelerated else "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(1, device=torch.device(name)).cpu()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise UserError(f"device '{name}' can't be used: {first_line(error)[:160]}") from None
    return name


def model_device(model: object) -> str | None:
    """Where a module's weights are."""
    tensors = [*model.parameters(), *model.buffers()] if isinstance(model, nn.Module) else []
    return str(tensors[0].device) if tensors else None


def is_out_of_memory(error: BaseException) -> bool:
    """Of a GPU, or of this machine, whose allocator has no error class of its own."""
    return isinstance(error, torch.cuda.OutOfMemoryError) or "can't allocate memory" in str(error)

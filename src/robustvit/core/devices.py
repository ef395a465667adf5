"""Devices by their name, and their memory."""

import os

import torch

from robustvit.core.errors import UserError, first_line


def checked_device(name: str) -> str:
    """The name again, if something can be computed there; under torchrun, `cuda` is each process's own."""
    if name == "cuda" and "LOCAL_RANK" in os.environ:
        name = f"cuda:{os.environ['LOCAL_RANK']}"
    try:
        torch.empty(1, device=torch.device(name)).cpu()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise UserError(f"device '{name}' can't be used: {first_line(error)[:160]}") from None
    return name


def is_out_of_memory(error: BaseException) -> bool:
    """Of a GPU, or of this machine, whose allocator has no error class of its own."""
    return isinstance(error, torch.cuda.OutOfMemoryError) or "can't allocate memory" in str(error)

"""Devices by their name."""

import torch

from robustvit.core.errors import UserError, first_line


def checked_device(name: str) -> str:
    """The name again, if something can be computed there."""
    try:
        torch.empty(1, device=torch.device(name)).cpu()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise UserError(f"device '{name}' can't be used: {first_line(error)[:160]}") from None
    return name

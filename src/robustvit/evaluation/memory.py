"""Batches, and what is done where one of them doesn't fit into memory."""

from collections.abc import Callable, Iterator
from typing import TypeVar

import torch
from torch import Tensor

from robustvit.core.devices import is_out_of_memory
from robustvit.core.errors import UserError, first_line
from robustvit.core.result import ResultWarning

T = TypeVar("T")


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

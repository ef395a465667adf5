"""Which share of the work is this process's: alone, or as torchrun launched it."""

import os
from dataclasses import dataclass
from datetime import timedelta

from torch import Tensor


@dataclass(frozen=True)
class Shard:
    """Process `rank` of `count`."""

    rank: int = 0
    count: int = 1

    def of(self, indices: Tensor) -> Tensor:
        """Every count-th image, so that easy and hard ones are spread."""
        return indices[indices % self.count == self.rank]


def launched() -> Shard:
    """The share that torchrun's environment gives to this process."""
    return Shard(int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1")))


def wait_for_all(shard: Shard) -> None:
    """Until every process of a torchrun launch is here; nothing to do for a process alone."""
    if shard.count == 1:
        return
    import torch.distributed as dist

    if not dist.is_initialized():
        dist.init_process_group("gloo", timeout=timedelta(days=30))  # shares of the work may differ by hours
    dist.barrier()

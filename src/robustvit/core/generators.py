"""The only place that touches the global generators of Python, NumPy and torch."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from robustvit.core.streams import Name, digest


@contextmanager
def seeded_globals(*key: Name) -> Iterator[None]:
    """Global generators seeded from the key inside, as they were outside.

    Dropout, drop-path and most transforms take no generator; seeding them by (seed, step) rather than letting them run
    on makes a resumed run draw what the unbroken one drew.
    """
    seed = digest(*key)
    python_state, numpy_state = random.getstate(), np.random.get_state()
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    with torch.random.fork_rng(devices=devices):
        random.seed(seed)
        np.random.seed(seed & 0xFFFFFFFF)
        torch.manual_seed(seed & 0x7FFFFFFFFFFFFFFF)
        try:
            yield
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)

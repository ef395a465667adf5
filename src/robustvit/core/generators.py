"""The only place that touches the global generators of Python, NumPy and torch."""

import random
from collections.abc import Callable, Iterator
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
    with reseeded_globals() as seed_all:
        torch.manual_seed(seed_all(*key))  # on every device
        yield


@contextmanager
def reseeded_globals() -> Iterator[Callable[..., int]]:
    """Inside, a function seeds those of the CPU from a key, as often as it is called: for one image after the other.

    It takes 20 microseconds; saving and seeding those of every device takes a hundred times as long.
    """
    python_state, numpy_state = random.getstate(), np.random.get_state()
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    with torch.random.fork_rng(devices=devices):
        try:
            yield _seed_all
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)


def _seed_all(*key: Name) -> int:
    seed = digest(*key)
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    torch.default_generator.manual_seed(seed & 0x7FFFFFFFFFFFFFFF)
    return seed & 0x7FFFFFFFFFFFFFFF

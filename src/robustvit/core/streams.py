"""Randomness that belongs to the sample.

Every image has its own stateless streams, named rather than counted: a draw depends on (seed, names, image id) and on
nothing else, so neither batch size nor order, neighbors, sharding or early exit can shift it. The generator is
Philox-4x32-10 (Salmon et al., SC 2011) over integer tensors, hence the same on every device.
"""

import hashlib
import math
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

_MASK = 0xFFFFFFFF
_ROUNDS = 10
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_FEISTEL_ROUNDS = 6

Name = str | int


def digest(*parts: object) -> int:
    """64 bits that depend on the parts and nothing else (Python's own `hash` is salted)."""
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


@dataclass(frozen=True)
class SampleStreams:
    """Random numbers for a batch of images; `ids` (B,) name the images, `names` the use."""

    seed: int
    ids: Tensor
    names: tuple[Name, ...] = ()

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, rows: Tensor | slice) -> "SampleStreams":
        return SampleStreams(self.seed, self.ids[rows], self.names)

    @property
    def restart(self) -> int:
        """Which restart of an attack draws here; the first is 0."""
        numbers = [after for name, after in pairwise(self.names) if name == "restart"]
        return int(numbers[-1]) if numbers else 0

    def to(self, device: torch.device | str) -> "SampleStreams":
        return SampleStreams(self.seed, self.ids.to(device), self.names)

    def child(self, *names: Name) -> "SampleStreams":
        """Streams for another use, independent of these."""
        return SampleStreams(self.seed, self.ids, self.names + names)

    def uniform(self, shape: Sequence[int], *, at: Name, dtype: torch.dtype = torch.float32) -> Tensor:
        """(B, *shape) in (0, 1), on a grid that float32 holds exactly, so float64 draws the same numbers."""
        return self._unit(shape, at).to(dtype).to(self.ids.device)

    def normal(self, shape: Sequence[int], *, at: Name, dtype: torch.dtype = torch.float32) -> Tensor:
        """(B, *shape) standard normal, by Box and Muller in float64."""
        pairs = self._unit((2, math.prod(shape)), at)
        radius = (-2.0 * pairs[:, 0].log()).sqrt()
        return (radius * (2.0 * math.pi * pairs[:, 1]).cos()).to(dtype).to(self.ids.device).reshape(len(self), *shape)

    def integers(self, high: int, shape: Sequence[int] = (), *, at: Name) -> Tensor:
        """(B, *shape) in 0..high-1."""
        if not 0 < high <= 1 << 31:
            raise ValueError(f"high: above 0 and at most 2**31, not {high}")
        words = self._words(math.prod(shape), at)
        return ((words * high) >> 32).to(self.ids.device).reshape(len(self), *shape)

    def _unit(self, shape: Sequence[int], at: Name) -> Tensor:
        words = self._words(math.prod(shape), at)
        return (((words >> 9).to(torch.float64) + 0.5) * 2.0**-23).reshape(len(self), *shape)

    def _words(self, count: int, at: Name) -> Tensor:
        """(B, count) words of 32 bits."""
        key = digest(self.seed, *self.names, "at", at)
        blocks = -(-count // 4)
        ids = self.ids.cpu() if self.ids.device.type == "mps" else self.ids  # it has no float64
        ids = ids.to(torch.int64).unsqueeze(1)  # (B, 1)
        block = torch.arange(blocks, device=ids.device).unsqueeze(0)  # (1, blocks)
        zero = torch.zeros_like(ids + block)
        words = philox((zero + block, zero, zero + (ids & _MASK), zero + ((ids >> 32) & _MASK)), key)
        return torch.stack(words, dim=-1).reshape(len(self), blocks * 4)[:, :count]


def sample_streams(seed: int, ids: Sequence[int] | Tensor) -> SampleStreams:
    """Streams for images with these ids: the same id and seed always draw the same numbers."""
    return SampleStreams(seed, torch.as_tensor(ids, dtype=torch.int64))


def philox(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Four words for each counter of four words; int64 tensors hold 32 bits each."""
    c0, c1, c2, c3 = counter
    k0, k1 = key & _MASK, (key >> 32) & _MASK
    for _ in range(_ROUNDS):
        # products wrap modulo 2**64, which keeps their bits; shifts are arithmetic, hence the mask
        p0, p1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1 = ((p1 >> 32) & _MASK) ^ c1 ^ k0, p1 & _MASK
        c2, c3 = ((p0 >> 32) & _MASK) ^ c3 ^ k1, p0 & _MASK
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return c0, c1, c2, c3


def seeded_subset(total: int, count: int, seed: int, purpose: str) -> Tensor:
    """`count` of `total` indices, sorted: a larger count only adds to a smaller one's choice."""
    if not 0 <= count <= total:
        raise ValueError(f"{count} of {total} indices can't be chosen")
    return seeded_order(total, seed, purpose)[:count].sort().values


def seeded_order(total: int, seed: int, *names: Name) -> Tensor:
    """A permutation of 0..total-1 that depends on the seed and the names alone."""
    words = sample_streams(seed, torch.arange(total)).child(*names).uniform((2,), at="order", dtype=torch.float64)
    return torch.argsort(words[:, 0] + words[:, 1] * 2.0**-23, stable=True)


def seeded_places(places: Tensor, total: int, seed: int, *names: Name) -> Tensor:
    """Where a permutation of 0..total-1 takes these places, without making the whole of it.

    A Feistel network over as many bits as `total` needs; what falls outside goes through it again, until it is inside.
    """
    if not 0 < total <= 1 << 32:
        raise ValueError(f"total: above 0 and at most 2**32, not {total}")
    keys = [digest(seed, *names, "places", number) & _MASK for number in range(_FEISTEL_ROUNDS)]
    bits = (total - 1).bit_length()
    low_bits = bits // 2
    low_mask, high_mask = (1 << low_bits) - 1, (1 << (bits - low_bits)) - 1
    moved = places.to(torch.int64).clone()
    going = torch.arange(len(moved))
    while len(going):
        low, high = moved[going] & low_mask, moved[going] >> low_bits
        for number, key in enumerate(keys):
            if number % 2:
                low = low ^ (_scrambled(high, key) & low_mask)
            else:
                high = high ^ (_scrambled(low, key) & high_mask)
        moved[going] = (high << low_bits) | low
        going = going[moved[going] >= total]
    return moved


def _scrambled(words: Tensor, key: int) -> Tensor:
    """32 bits that depend on all of word and key: cheaper than Philox, and enough for six rounds."""
    for multiplier, shift in ((0x85EBCA6B, 15), (0xC2B2AE35, 13)):
        words = ((words ^ key) * multiplier) & _MASK
        words = words ^ (words >> shift)
    return words


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

"""Noise of single values: normal, Poisson, salt and pepper, and in proportion to brightness."""

from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor

from robustvit.core.component import component
from robustvit.core.streams import SampleStreams
from robustvit.data.corruptions import parameters
from robustvit.data.corruptions.base import Levels, normal, truncated, unit


@component("corruption", "gaussian_noise")
class GaussianNoise:
    """Normal noise on every value, as a sensor has in low light."""

    group: ClassVar[str] = "noise"
    levels: ClassVar[Levels] = parameters.GAUSSIAN_NOISE

    def __call__(self, images: Tensor, setting: float, random: SampleStreams) -> Tensor:
        return truncated(normal(random, tuple(images.shape[1:]), "noise").mul_(setting).add_(unit(images)))


@component("corruption", "shot_noise")
class ShotNoise:
    """Poisson noise: so many photons for a white value, fewer for a darker one."""

    group: ClassVar[str] = "noise"
    levels: ClassVar[Levels] = parameters.SHOT_NOISE

    def __call__(self, images: Tensor, setting: int, random: SampleStreams) -> Tensor:
        table = _poisson_tables(setting)
        level = images.long()
        drawn = random.uniform(tuple(images.shape[1:]), at="photons", dtype=torch.float64).add_(level)
        photons = torch.searchsorted(table, drawn).sub_(level.mul_(setting + 1))
        return truncated(photons.double().div_(setting))


@lru_cache(maxsize=16)
def _poisson_tables(white: int) -> Tensor:
    """256 distribution functions end to end, so that one search finds the count of any value: that of gray level g
    lies in (g, g + 1]. Larger counts than `white` are found as the next one, which is white, too."""
    from scipy.special import pdtr

    rates = torch.arange(256, dtype=torch.float64) / 255 * white
    table = torch.from_numpy(pdtr(torch.arange(white + 1).numpy(), rates[:, None].numpy()))
    return (table + torch.arange(256)[:, None]).flatten()


@component("corruption", "impulse_noise")
class ImpulseNoise:
    """Salt and pepper: some values become black or white, each channel's by itself."""

    group: ClassVar[str] = "noise"
    levels: ClassVar[Levels] = parameters.IMPULSE_NOISE

    def __call__(self, images: Tensor, setting: float, random: SampleStreams) -> Tensor:
        drawn = random.uniform(tuple(images.shape[1:]), at="impulse", dtype=torch.float64)
        salted = images.masked_fill(drawn < setting, 255)
        return salted.masked_fill_(drawn < setting / 2, 0)


@component("corruption", "speckle_noise")
class SpeckleNoise:
    """Normal noise in proportion to the value."""

    group: ClassVar[str] = "extra"
    levels: ClassVar[Levels] = parameters.SPECKLE_NOISE

    def __call__(self, images: Tensor, setting: float, random: SampleStreams) -> Tensor:
        noise = normal(random, tuple(images.shape[1:]), "noise").mul_(setting)
        return truncated(noise.add_(1).mul_(unit(images)))

"""What a corruption is, and the arithmetic that all of them share: float64 between 8 bits and 8 bits."""

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Protocol

import torch
from pydantic import Field
from torch import Tensor

from robustvit.core.component import OneOf
from robustvit.core.errors import UserError
from robustvit.core.streams import SampleStreams

GENERATOR = 1
"""Version of the images: another number as soon as a corruption gives other pixels."""

ParameterSet = Literal["imagenet", "cifar"]
"""Whose constants: those of ImageNet-C, or the weaker ones of CIFAR-10-C."""
SMALLEST: dict[ParameterSet, int] = {"imagenet": 11, "cifar": 8}
"""Pixels of the shorter side: the widest blur must not reach beyond the mirrored image."""
Severity = Annotated[int, Field(ge=1, le=5)]
SEVERITIES = (1, 2, 3, 4, 5)

_PIXELS = 1 << 16
"""Pixels worked on at a time: more leave the cache."""
_ROUNDING = 1e-6
"""Of a gray level. Truncation would make 254 of 255 where rounding errors are, which differ with batch and machine."""


@dataclass(frozen=True)
class Levels:
    """The constants of severities 1 to 5."""

    imagenet: tuple[Any, ...]
    cifar: tuple[Any, ...]

    def setting(self, parameters: ParameterSet, severity: int) -> Any:
        return (self.imagenet if parameters == "imagenet" else self.cifar)[severity - 1]


class Corruption(Protocol):
    """(B, 3, H, W) uint8, the constants of a severity and the images' random streams, to the same shape, uint8."""

    @property
    def name(self) -> str: ...

    @property
    def group(self) -> str:
        """Such as noise or weather, over which accuracies are averaged."""

    @property
    def levels(self) -> Levels: ...

    def __call__(self, images: Tensor, setting: Any, random: SampleStreams) -> Tensor: ...


AnyCorruption = Annotated[Corruption, OneOf("corruption")]


def corrupted(
    images: Tensor, corruption: Corruption, severity: int, parameters: ParameterSet, random: SampleStreams
) -> Tensor:
    """The images under a corruption; what an image becomes depends on its pixels, its stream and the severity alone."""
    check_size(images.shape[2], images.shape[3], parameters)
    setting = corruption.levels.setting(parameters, severity)
    streams = random.child(corruption.name, severity)
    rows = torch.split(torch.arange(len(images)), max(1, _PIXELS // math.prod(images.shape[2:])))
    return torch.cat([corruption(images[some], setting, streams[some]) for some in rows])


def parameters_for(height: int, width: int) -> ParameterSet:
    """CIFAR's up to 32 pixels, ImageNet's above."""
    return "cifar" if max(height, width) <= 32 else "imagenet"


def check_size(height: int, width: int, parameters: ParameterSet) -> None:
    if min(height, width) < SMALLEST[parameters]:
        raise UserError(
            f"corruptions: images of {height}x{width} pixels are too small for the parameters of {parameters}, "
            f"which need {SMALLEST[parameters]}" + (" (cifar: 8)" if parameters == "imagenet" else "")
        )


def unit(images: Tensor) -> Tensor:
    """8 bits as float64 in [0, 1]."""
    return images.to(torch.float64).div_(255)


def truncated(values: Tensor) -> Tensor:
    """[0, 1] to 8 bits without rounding, as the authors' files were made; what is outside is cut off."""
    return values.mul(255).add_(_ROUNDING).clamp_(0, 255).to(torch.uint8)


def normal(random: SampleStreams, shape: tuple[int, ...], at: str) -> Tensor:
    """(B, *shape) standard normal by the inverse distribution function: half the words of `SampleStreams.normal`."""
    return random.uniform(shape, at=at, dtype=torch.float64).mul_(2).sub_(1).erfinv_().mul_(math.sqrt(2))

"""Weather: snow, frost, fog and glaring light."""

from pathlib import Path
from typing import ClassVar, Literal

import torch
from torch import Tensor

from robustvit.core.component import component
from robustvit.core.streams import SampleStreams
from robustvit.data.corruptions import parameters
from robustvit.data.corruptions.base import Levels, normal, truncated, unit
from robustvit.data.corruptions.filters import motion_blurred, zoomed
from robustvit.data.corruptions.textures import frost_textures

_GRAY = torch.tensor([0.299, 0.587, 0.114], dtype=torch.float64).view(3, 1, 1)


@component("corruption", "snow")
class Snow:
    """Falling flakes over a whitened image."""

    group: ClassVar[str] = "weather"
    levels: ClassVar[Levels] = parameters.SNOW

    def __call__(self, images: Tensor, setting: parameters.Snow, random: SampleStreams) -> Tensor:
        height, width = images.shape[2:]
        noise = normal(random, (1, height, width), "flakes").mul_(setting.deviation).add_(setting.mean)
        noise = zoomed(noise, setting.zoom)
        flakes = truncated(noise.where(noise >= setting.threshold, 0)).double()
        angles = random.uniform((), at="angle", dtype=torch.float64).mul_(90).sub_(135).tolist()
        falling = [motion_blurred(one, setting.motion, angle) for one, angle in zip(flakes, angles, strict=True)]
        layer = torch.stack(falling).round_().div_(255)  # (B, 1, H, W); ImageMagick rounds
        pixels = unit(images)
        gray = (pixels * _GRAY).sum(1, keepdim=True)
        whitened = torch.maximum(pixels, gray * 1.5 + 0.5)
        return truncated(setting.mix * pixels + (1 - setting.mix) * whitened + layer + layer.flip(2, 3))


@component("corruption", "frost")
class Frost:
    """Ice crystals on the window, cut at random out of one of five textures."""

    textures: Literal["drawn"] | Path = "drawn"
    """`drawn`: robustvit's own; or a folder with frost1.png to frost5.jpg as published with ImageNet-C."""
    group: ClassVar[str] = "weather"
    levels: ClassVar[Levels] = parameters.FROST

    def __call__(self, images: Tensor, setting: parameters.Frost, random: SampleStreams) -> Tensor:
        height, width = images.shape[2:]
        textures = frost_textures(self.textures, setting.scale, (height, width))
        which = random.integers(len(textures), (), at="texture").tolist()
        places = random.uniform((2,), at="place", dtype=torch.float64).tolist()
        cuts = []
        for number, place in zip(which, places, strict=True):
            texture = textures[number]
            top = int(place[0] * (texture.shape[1] - height))
            left = int(place[1] * (texture.shape[2] - width))
            cuts.append(texture[:, top : top + height, left : left + width])
        return truncated(setting.image * unit(images) + setting.texture * unit(torch.stack(cuts)))


@component("corruption", "fog")
class Fog:
    """A fractal cloud in front of the image."""

    group: ClassVar[str] = "weather"
    levels: ClassVar[Levels] = parameters.FOG

    def __call__(self, images: Tensor, setting: parameters.Fog, random: SampleStreams) -> Tensor:
        height, width = images.shape[2:]
        cloud = plasma(1 << (max(height, width) - 1).bit_length(), setting.decay, random)[:, None, :height, :width]
        pixels = unit(images)
        brightest = pixels.amax((1, 2, 3), keepdim=True)
        return truncated((pixels + setting.strength * cloud) * (brightest / (brightest + setting.strength)))


def plasma(size: int, decay: float, random: SampleStreams) -> Tensor:
    """(B, size, size) in [0, 1] by the diamond-square algorithm on a torus, whose side is a power of 2."""
    drawn = random.uniform((size * size,), at="cloud", dtype=torch.float64).mul_(2).sub_(1)
    field = torch.zeros(len(random), size, size, dtype=torch.float64)
    step, spread, used = size, 100.0, 0

    def mean(total: Tensor) -> Tensor:
        nonlocal used
        noise = drawn[:, used : used + total[0].numel()].view_as(total)
        used += total[0].numel()
        return total / 4 + spread**2 * noise

    while step >= 2:
        half = step // 2
        corners = field[:, ::step, ::step]
        vertical, horizontal = corners + corners.roll(-1, 1), corners + corners.roll(-1, 2)  # pairs of neighbors
        field[:, half::step, half::step] = middles = mean(vertical + vertical.roll(-1, 2))
        field[:, ::step, half::step] = mean(middles + middles.roll(1, 1) + horizontal)
        field[:, half::step, ::step] = mean(middles + middles.roll(1, 2) + vertical)
        step, spread = half, spread / decay
    field -= field.amin((1, 2), keepdim=True)
    return field / field.amax((1, 2), keepdim=True)


@component("corruption", "brightness")
class Brightness:
    """Glaring light: the value of HSV is raised."""

    group: ClassVar[str] = "weather"
    levels: ClassVar[Levels] = parameters.BRIGHTNESS

    def __call__(self, images: Tensor, setting: float, random: SampleStreams) -> Tensor:
        pixels = unit(images)
        value = pixels.amax(1, keepdim=True)
        raised = (value + setting).clamp_(max=1)
        # hue and saturation stay, so that all channels grow by the same factor; black becomes gray
        return truncated(torch.where(value > 0, pixels * (raised / value.clamp_min(1 / 255)), raised))

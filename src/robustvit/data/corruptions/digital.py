"""Digital artifacts: contrast, elastic deformation, pixels, JPEG; and saturation."""

import io
from collections.abc import Callable
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from robustvit.core.component import component
from robustvit.core.streams import SampleStreams
from robustvit.data.corruptions import parameters
from robustvit.data.corruptions.base import Levels, truncated, unit
from robustvit.data.corruptions.filters import smoothed


@component("corruption", "contrast")
class Contrast:
    """Each channel pulled towards its mean."""

    group: ClassVar[str] = "digital"
    levels: ClassVar[Levels] = parameters.CONTRAST

    def __call__(self, images: Tensor, setting: float, random: SampleStreams) -> Tensor:
        means = images.sum((2, 3), keepdim=True).double() / (255 * images[0, 0].numel())
        return truncated((unit(images) - means).mul_(setting).add_(means))


@component("corruption", "elastic_transform")
class ElasticTransform:
    """A random affine map, then small regions stretched or squeezed."""

    group: ClassVar[str] = "digital"
    levels: ClassVar[Levels] = parameters.ELASTIC_TRANSFORM

    def __call__(self, images: Tensor, setting: parameters.Elastic, random: SampleStreams) -> Tensor:
        height, width = images.shape[2:]
        x, y = _affine_places(height, width, setting.affine, random)
        made = _sampled(unit(images), x, y, mirrors_centers=True)
        if setting.alpha:
            fields = random.uniform((2, height, width), at="fields", dtype=torch.float64).mul_(2).sub_(1)
            right, down = smoothed(fields, setting.sigma, "reflect", 3).mul_(setting.alpha).unbind(1)
            rows, columns = torch.arange(height, dtype=torch.float64)[:, None], torch.arange(width)
            made = _sampled(made, columns + right, rows + down, mirrors_centers=False)
        return truncated(made)


def _affine_places(height: int, width: int, reach: float, random: SampleStreams) -> tuple[Tensor, Tensor]:
    """x and y (B, H, W) in the image where each pixel comes from: three points move by up to `reach`."""
    center = torch.tensor([width // 2, height // 2], dtype=torch.float64)
    signs = torch.tensor([[1, 1], [1, -1], [-1, -1]], dtype=torch.float64)
    points = center + signs * (min(height, width) // 3)  # (3, 2)
    moved = points + random.uniform((3, 2), at="affine", dtype=torch.float64).mul_(2).sub_(1) * reach
    # the map from the moved points back: in the basis of two sides of their triangle, by Cramer's rule
    first, second = (moved[:, 1:] - moved[:, :1]).unbind(1)  # (B, 2)
    area = first[:, 0] * second[:, 1] - first[:, 1] * second[:, 0]
    area = area.where(area.abs() > 1e-6, 1e-6)
    x = torch.arange(width, dtype=torch.float64) - moved[:, 0, 0, None, None]
    y = torch.arange(height, dtype=torch.float64)[:, None] - moved[:, 0, 1, None, None]
    along_first = (x * second[:, 1, None, None] - y * second[:, 0, None, None]) / area[:, None, None]
    along_second = (y * first[:, 0, None, None] - x * first[:, 1, None, None]) / area[:, None, None]
    sides = points[1:] - points[0]
    back = [points[0, i] + along_first * sides[0, i] + along_second * sides[1, i] for i in (0, 1)]
    return back[0], back[1]


def _sampled(images: Tensor, x: Tensor, y: Tensor, mirrors_centers: bool) -> Tensor:
    """Bilinear at these pixels, mirrored about the centers of the outermost pixels or about their outer sides."""
    height, width = images.shape[2:]
    if mirrors_centers:
        places = torch.stack([2 * x / (width - 1) - 1, 2 * y / (height - 1) - 1], -1)
    else:
        places = torch.stack([(2 * x + 1) / width - 1, (2 * y + 1) / height - 1], -1)
    return F.grid_sample(images, places, padding_mode="reflection", align_corners=mirrors_centers)


@component("corruption", "pixelate")
class Pixelate:
    """Made smaller and larger again without smoothing."""

    group: ClassVar[str] = "digital"
    levels: ClassVar[Levels] = parameters.PIXELATE

    def __call__(self, images: Tensor, setting: float, random: SampleStreams) -> Tensor:
        height, width = images.shape[2:]
        small, box = (int(width * setting), int(height * setting)), Image.Resampling.BOX
        return each_picture(images, lambda picture: picture.resize(small, box).resize((width, height), box))


@component("corruption", "jpeg_compression")
class JpegCompression:
    """Saved as JPEG of low quality."""

    group: ClassVar[str] = "digital"
    levels: ClassVar[Levels] = parameters.JPEG_COMPRESSION

    def __call__(self, images: Tensor, setting: int, random: SampleStreams) -> Tensor:
        return jpeg(images, setting)


@component("corruption", "saturate")
class Saturate:
    """The saturation of HSV multiplied and raised."""

    group: ClassVar[str] = "extra"
    levels: ClassVar[Levels] = parameters.SATURATE

    def __call__(self, images: Tensor, setting: parameters.Saturation, random: SampleStreams) -> Tensor:
        pixels = unit(images)
        value, lowest = pixels.amax(1, keepdim=True), pixels.amin(1, keepdim=True)
        extent = value - lowest
        # with the hue, each channel's place between the lowest and the highest stays; the hue of gray counts as red
        places = (pixels - lowest) / extent.clamp_min(1 / 255)
        places[:, :1].masked_fill_(extent == 0, 1)
        saturation = extent / value.clamp_min(1 / 255)
        changed = saturation.mul_(setting.factor).add_(setting.added).clamp_(0, 1)
        return truncated(value * (1 - changed * (1 - places)))


def jpeg(images: Tensor, quality: int) -> Tensor:
    """Saved as JPEG and read again."""

    def saved(picture: Image.Image) -> Image.Image:
        stream = io.BytesIO()
        picture.save(stream, "JPEG", quality=quality)
        return Image.open(stream)

    return each_picture(images, saved)


def each_picture(images: Tensor, change: Callable[[Image.Image], Image.Image]) -> Tensor:
    """Pillow's operations, picture by picture."""
    pictures = images.permute(0, 2, 3, 1).contiguous().numpy()
    made = np.stack([np.asarray(change(Image.fromarray(picture))) for picture in pictures])
    return torch.from_numpy(made).permute(0, 3, 1, 2).contiguous()

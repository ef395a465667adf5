"""Textures of frost: five drawn ones, or the published files."""

import hashlib
import math
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from robustvit.core.errors import UserError
from robustvit.core.files import is_file, is_folder
from robustvit.core.readers import read_bytes
from robustvit.core.streams import SampleStreams, sample_streams
from robustvit.data.corruptions.base import normal, truncated
from robustvit.data.corruptions.filters import smoothed
from robustvit.data.pictures import decode
from robustvit.data.preprocess import Preprocess

FILES = ("frost1.png", "frost2.png", "frost3.png", "frost4.jpg", "frost5.jpg")
"""Published with ImageNet-C; a sixth is there and never drawn."""
_SMALLEST = 32
"""Pixels of the shorter side of a texture; the published ones have more than 300."""
_SIDES = (512, 768)
_COLORS = ((0.31, 0.58, 0.65), (0.79, 0.81, 0.84), (0.79, 0.81, 0.84), (0.54, 0.60, 0.65), (0.44, 0.48, 0.53))
_DEVIATIONS = (0.075, 0.087, 0.087, 0.113, 0.17)
"""Mean color and deviation of gray of the published files; the second and third look alike."""


State = tuple[tuple[int, int], ...]
"""Size and time of files, which tell them from others that have replaced them."""


def frost_textures(source: str | Path, scale: float, sides: tuple[int, int]) -> tuple[Tensor, ...]:
    """(3, H, W) uint8 each, made smaller by `scale`, and larger where an image of these sides doesn't fit inside."""
    return _of_sides(source, () if source == "drawn" else _state(Path(source)), scale, sides)


@lru_cache(maxsize=4)
def _of_sides(source: str | Path, state: State, scale: float, sides: tuple[int, int]) -> tuple[Tensor, ...]:
    whole = _published(Path(source), state) if state else _drawn()
    return tuple(_fitted(texture, scale, sides) for texture in whole)


def _fitted(texture: Tensor, scale: float, sides: tuple[int, int]) -> Tensor:
    step = round(1 / scale)
    texture = texture[:, step // 2 :: step, step // 2 :: step]  # without smoothing, as the authors'
    short = max((side + 1) / had for side, had in zip(sides, texture.shape[1:], strict=True))
    if short <= 1:
        return texture.contiguous()
    larger = [math.ceil(had * short) for had in texture.shape[1:]]
    return truncated(F.interpolate(texture[None].double() / 255, larger, mode="bilinear", align_corners=False))[0]


def textures_digest(folder: str | Path) -> str:
    """Of the pixels of published textures."""
    hashed = hashlib.sha256()
    for texture in _published(Path(folder), _state(Path(folder))):
        hashed.update(texture.numpy().tobytes())
    return hashed.hexdigest()[:16]


def _state(folder: Path) -> State:
    if not is_folder(folder):
        raise UserError(f"frost: no folder '{folder}'; expected {', '.join(FILES)} in it, or frost: drawn")
    missing = next((name for name in FILES if not is_file(folder / name)), None)
    if missing is not None:
        raise UserError(f"frost: '{folder}' has no {missing}; expected {', '.join(FILES)}, or frost: drawn")
    found = [(folder / name).stat() for name in FILES]
    return tuple((one.st_size, one.st_mtime_ns) for one in found)


@lru_cache(maxsize=2)
def _published(folder: Path, state: State) -> tuple[Tensor, ...]:
    pictures = decode(
        len(FILES),
        lambda row: read_bytes(folder / FILES[row]),
        lambda row: str(folder / FILES[row]),
        lambda picture, _: Preprocess()(picture),
    )
    for name, picture in zip(FILES, pictures, strict=True):
        if min(picture.shape[:2]) < _SMALLEST:
            sides = "{}x{}".format(*picture.shape[:2])
            raise UserError(f"frost: {folder / name} has {sides} pixels, too few for a texture; at least {_SMALLEST}")
    return tuple(torch.from_numpy(np.array(picture)).permute(2, 0, 1) for picture in pictures)


@lru_cache(maxsize=1)
def _drawn() -> tuple[Tensor, ...]:
    """Feathers of needles at 60 degrees, lit from one side, over soft patches; the same in every run."""
    made = []
    for number, (color, deviation) in enumerate(zip(_COLORS, _DEVIATIONS, strict=True)):
        random = sample_streams(0, [number]).child("frost")
        height = smoothed(_feathers(random), 0.7)
        coarse = normal(random, (1, _SIDES[0] // 64, _SIDES[1] // 64), "patches")
        parts = {
            "relief": (0.5, height - height.roll((1, 1), (0, 1))),
            "height": (0.6, height),
            "patches": (1.0, F.interpolate(coarse, _SIDES, mode="bicubic", align_corners=False)[0, 0]),
        }
        gray = torch.stack([weight * part / part.std() for weight, part in parts.values()]).sum(0)
        gray = (gray - gray.mean()) / gray.std()
        made.append(truncated(torch.tensor(color, dtype=torch.float64).view(3, 1, 1) + deviation * gray))
    return tuple(made)


def _feathers(random: SampleStreams) -> Tensor:
    """(H, W) height of the ice, on a torus: highest on the stems, lower towards the tips of the needles."""
    (height, width), count, needles, points = _SIDES, 1500, 12, 32
    drawn = random.uniform((5, count, 1, 1), at="feathers", dtype=torch.float64)[0]
    angle, length = 2 * math.pi * drawn[2], 20 + 60 * drawn[3] ** 2
    canvas = torch.zeros(height * width, dtype=torch.float64)

    def draw(turn: float, begins: Tensor, reach: Tensor) -> None:
        """Needles that begin so far along the stem, each with a turn from it, and reach so far."""
        out = torch.arange(points, dtype=torch.float64) / points
        down = drawn[0] * height + length * begins * angle.sin() + length * reach * out * (angle + turn).sin()
        right = drawn[1] * width + length * begins * angle.cos() + length * reach * out * (angle + turn).cos()
        places = (down.floor().long() % height) * width + right.floor().long() % width  # (count, needles, points)
        heights = (0.5 + 0.5 * drawn[4]) * (1 - 0.5 * begins) * (1 - 0.5 * out)
        canvas.scatter_reduce_(0, places.flatten(), heights.flatten(), "amax")

    along = torch.arange(needles, dtype=torch.float64).view(-1, 1) / needles
    for turn in (-math.pi / 3, math.pi / 3):
        draw(turn, along, 0.4 * (1 - along))
    half = torch.tensor([[0.0], [0.5]], dtype=torch.float64)
    draw(0, half, torch.full_like(half, 0.5))
    return canvas.view(height, width)

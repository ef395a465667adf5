"""A single picture, in the size that a model takes: a file, bytes that were sent, or a photograph of the package."""

import io
import re
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image, ImageOps

from robustvit.core.errors import UserError
from robustvit.data.pictures import decode
from robustvit.data.preprocess import Preprocess
from robustvit.data.sample import Cifar10Sample

MOST_BYTES = 16 << 20
MOST_PIXELS = 40_000_000
"""Of a picture, before it is decoded."""
MOST_UNSIZED = 1_000_000
"""Of a picture that a model gets as it is: a pass costs memory for every pixel."""
SAMPLE = re.compile(r"sample:(\d{1,4})")
"""How a photograph of the package is named."""


class TooLargeError(Exception):
    """A whole picture that is too large for a model, or would be."""


@dataclass(frozen=True)
class Picture:
    """A picture as a model gets it."""

    name: str
    pixels: np.ndarray
    """(H, W, 3) uint8."""
    size: tuple[int, int]
    """Width and height of the file."""
    how: str
    """What was done to it; empty: nothing."""
    label: int | None = None
    """Of a photograph of the package, its class in CIFAR-10."""

    @property
    def resized(self) -> str:
        """A sentence where the model doesn't get the pixels of the file."""
        if not self.how:
            return ""
        height, width, _ = self.pixels.shape
        sizes = f"from {self.size[0]} x {self.size[1]} pixels to {width} x {height}"
        return f"{self.name}: {self.how} {sizes}; the attack changes these, and eps is of these"


def decode_picture(data: bytes, name: str, preprocess: Preprocess) -> Picture:
    """The picture in an encoded file, turned as its camera was held, in the size that is asked for."""
    sizes: list[tuple[int, int]] = []

    def make(picture: Image.Image, row: int) -> np.ndarray:
        if picture.width * picture.height > MOST_PIXELS:
            raise ValueError(f"{picture.width} x {picture.height} pixels, at most {MOST_PIXELS:,} are read")
        upright = ImageOps.exif_transpose(picture)
        sizes.append(upright.size)
        found = f"{upright.width} x {upright.height} pixels"
        if preprocess.size is None and upright.width * upright.height > MOST_UNSIZED:
            raise TooLargeError(f"{found}, and the model has no size of its own; --size brings it to one, such as 224")
        same = upright.size == (preprocess.size, preprocess.size)
        width, height = preprocess.resized(*upright.size)
        if width * height > MOST_PIXELS:  # also of a thin one, whose longer side grows with the shorter
            asked = f"to bring its shorter side to {min(width, height)} takes {width} x {height}"
            raise TooLargeError(f"{found}; {asked}, at most {MOST_PIXELS:,} in all are made")
        return Preprocess()(upright) if same else preprocess(upright)

    if len(data) > MOST_BYTES:
        raise UserError(f"{name}: {len(data):,} bytes, at most {MOST_BYTES:,} are read")
    try:
        (pixels,) = decode(1, lambda _: data, lambda _: name, make)
    except TooLargeError as error:
        raise UserError(f"{name}: {error}") from None
    how = ""
    if pixels.shape[:2] != sizes[0][::-1]:
        is_square = sizes[0][0] == sizes[0][1]
        how = "squashed" if preprocess.how == "squash" else "resized" if is_square else "resized and cropped"
    return Picture(name, pixels, sizes[0], how)


def sample_picture(name: str, preprocess: Preprocess) -> Picture:
    """`sample:17`, a photograph of the package."""
    match, images = SAMPLE.fullmatch(name), Cifar10Sample().open("test")
    if match is None or int(match[1]) >= len(images):
        raise UserError(f"{name}: the photographs of the package are sample:0 to sample:{len(images) - 1}")
    pixels, labels = images.take(torch.tensor([int(match[1])]))
    made = decode_picture(encoded(pixels[0].permute(1, 2, 0).numpy()), name, preprocess)
    return Picture(name, made.pixels, made.size, made.how, int(labels[0]))


def encoded(pixels: np.ndarray) -> bytes:
    """A PNG file of (H, W, 3) uint8, which keeps every level."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG", optimize=True)
    return buffer.getvalue()

"""From a picture file to pixels of the size a model wants: a setting of the data, because accuracy depends on it."""

from typing import Annotated, Literal

import numpy as np
from PIL import Image
from pydantic import Field, model_validator

from robustvit.core.component import settings
from robustvit.core.numbers import Number
from robustvit.data.base import Cut


@settings
class Preprocess:
    """`crop`: shorter side to size/crop_fraction, center cut out; `squash`: both sides to size; `none`: as it is."""

    size: int | None = None
    how: Literal["none", "crop", "squash"] = "none"
    crop_fraction: Annotated[Number, Field(gt=0, le=1)] = 0.875
    interpolation: Literal["nearest", "bilinear", "bicubic"] = "bicubic"

    @model_validator(mode="after")
    def _check(self) -> "Preprocess":
        if self.how != "none" and (self.size is None or self.size < 1):
            raise ValueError(f"how: {self.how} needs a size")
        if self.how == "none" and self.size is not None:
            raise ValueError(f"size: {self.size} needs how: crop or how: squash")
        return self

    def __call__(self, picture: Image.Image) -> np.ndarray:
        """(H, W, 3) uint8."""
        picture = _in_color(picture)
        resample = Image.Resampling[self.interpolation.upper()]
        width, height = self.resized(*picture.size)
        if self.how != "none":
            picture = picture.resize((width, height), resample)
        if self.how == "crop" and self.size:
            left, top = (width - self.size) // 2, (height - self.size) // 2
            picture = picture.crop((left, top, left + self.size, top + self.size))
        return np.asarray(picture)

    def resized(self, width: int, height: int) -> tuple[int, int]:
        """Width and height before anything is cut off."""
        if self.how == "none" or self.size is None:
            return width, height
        if self.how == "squash":
            return self.size, self.size
        shorter = round(self.size / self.crop_fraction)
        scale = shorter / min(width, height)
        return max(shorter, round(width * scale)), max(shorter, round(height * scale))

    def cut(self, picture: Image.Image, row: int, cut: Cut) -> np.ndarray:
        """A part of the whole picture in the usual size."""
        assert self.size is not None
        top, left, height, width = cut.box(row, picture.height, picture.width)
        # cut first: with `resize(box=...)` pixels from outside of the box would shine in
        part = _in_color(picture.crop((left, top, left + width, top + height)))
        return np.asarray(part.resize((self.size, self.size), Image.Resampling[cut.interpolation.upper()]))

    def timm_config(self) -> dict[str, str | float]:
        """As timm's configs say it."""
        if self.how == "none":
            return {}
        fraction, mode = (self.crop_fraction, "center") if self.how == "crop" else (1.0, "squash")
        return {"interpolation": self.interpolation, "crop_pct": fraction, "crop_mode": mode}


def _in_color(picture: Image.Image) -> Image.Image:
    if picture.mode.startswith("I"):  # 16 bits, which Pillow would cut off at 255 instead of scaling
        picture = Image.fromarray((np.asarray(picture) >> 8).astype(np.uint8))
    return picture if picture.mode == "RGB" else picture.convert("RGB")

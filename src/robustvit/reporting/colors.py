"""Colors of heat maps and of ordered groups, computed in OKLab, where equal steps look equal (Ottosson, 2020)."""

from collections.abc import Sequence
from functools import cache
from typing import Literal

import numpy as np

COLORS = 256
Lch = tuple[float, float, float]
"""Lightness, chroma and hue in degrees."""
_SEQUENTIAL: tuple[Lch, ...] = ((0.975, 0.03, 100), (0.83, 0.09, 160), (0.60, 0.095, 220), (0.28, 0.10, 272))
_LOW: tuple[Lch, ...] = ((0.40, 0.13, 262), (0.66, 0.11, 248), (0.97, 0.0, 248))
_HIGH: tuple[Lch, ...] = ((0.97, 0.0, 45), (0.66, 0.14, 45), (0.40, 0.11, 35))
_ORDERED: dict[str, tuple[Lch, ...]] = {
    "light": ((0.74, 0.15, 112), (0.60, 0.11, 165), (0.48, 0.11, 235), (0.38, 0.16, 275), (0.26, 0.13, 315)),
    "dark": ((0.46, 0.15, 310), (0.56, 0.15, 272), (0.66, 0.11, 230), (0.79, 0.13, 165), (0.94, 0.13, 108)),
}
"""By the page that they are drawn on. Lightness and hue change together, which sets neighbors apart; no hue is near the
orange of what a page is about."""
_TO_CUBES = np.array(
    [[1.0, 0.3963377774, 0.2158037573], [1.0, -0.1055613458, -0.0638541728], [1.0, -0.0894841775, -1.2914855480]]
)
_TO_LINEAR = np.array(
    [
        [4.0767416621, -3.3077115913, 0.2309699292],
        [-1.2684380046, 2.6097574011, -0.3413193965],
        [-0.0041960863, -0.7034186147, 1.7076147010],
    ]
)


@cache
def color_table(scale: Literal["sequential", "diverging"]) -> np.ndarray:
    """(256, 3) bytes: from light to dark, or from blue over white to orange."""
    if scale == "sequential":
        return _srgb(_between(_SEQUENTIAL, COLORS))
    half = COLORS // 2
    return np.concatenate([_srgb(_between(_LOW, half)), _srgb(_between(_HIGH, half))])


def ordered_colors(count: int, page: Literal["light", "dark"]) -> list[str]:
    """So many, evenly apart; the last one has the most contrast to the page."""
    return [hex_color(color) for color in _srgb(_between(_ORDERED[page], count))]


def color_indices(values: np.ndarray, limits: tuple[float, float]) -> np.ndarray:
    """Places in a table of colors; what lies outside of the limits has the first or last color."""
    low, high = limits
    fractions = (values - low) / (high - low)
    return np.clip(np.nan_to_num(fractions) * COLORS, 0, COLORS - 1).astype(np.uint8)


def hex_color(color: np.ndarray) -> str:
    return "#" + "".join(f"{int(level):02x}" for level in color)


def ink_on(color: np.ndarray) -> str:
    """Black or white by WCAG's relative luminance; white where both have a fair contrast, as it reads better."""
    levels = color / 255
    linear = np.where(levels <= 0.04045, levels / 12.92, ((levels + 0.055) / 1.055) ** 2.4)
    luminance = float(linear @ (0.2126, 0.7152, 0.0722))
    return "black" if luminance > 0.23 else "white"


def _between(stops: Sequence[Lch], count: int) -> np.ndarray:
    """(count, 3) OKLab values along the stops, evenly in lightness."""
    lightness, chroma, hue = np.array(stops).T
    path = np.linspace(lightness[0], lightness[-1], count)
    order = np.argsort(lightness)
    chroma, hue = (np.interp(path, lightness[order], values[order]) for values in (chroma, np.radians(hue)))
    return np.stack([path, chroma * np.cos(hue), chroma * np.sin(hue)], axis=1)


def _srgb(lab: np.ndarray) -> np.ndarray:
    linear = np.clip((lab @ _TO_CUBES.T) ** 3 @ _TO_LINEAR.T, 0, 1)
    encoded = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
    return np.asarray(np.round(255 * encoded), np.uint8)

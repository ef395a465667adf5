"""The constants of every severity, for ImageNet-C and for CIFAR-10-C.

Source: github.com/hendrycks/robustness, make_imagenet_c.py and make_cifar_c.py, commit 8190fe3 of 2022-08-24
(Hendrycks and Dietterich, Benchmarking Neural Network Robustness to Common Corruptions and Perturbations, ICLR 2019).
"""

from typing import NamedTuple

from robustvit.data.corruptions.base import Levels

GROUPS: dict[str, tuple[str, ...]] = {
    "noise": ("gaussian_noise", "shot_noise", "impulse_noise"),
    "blur": ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
    "weather": ("snow", "frost", "fog", "brightness"),
    "digital": ("contrast", "elastic_transform", "pixelate", "jpeg_compression"),
    "extra": ("speckle_noise", "gaussian_blur", "spatter", "saturate"),
}
"""In the paper's order; the extra ones are meant for validation and are no part of its 15."""
EXTRA = GROUPS["extra"]
STANDARD = tuple(name for group, names in GROUPS.items() for name in names if group != "extra")


class Disk(NamedTuple):
    """Of a lens out of focus."""

    radius: float
    alias: float
    """Deviation of the Gaussian that smooths its rim."""


class Glass(NamedTuple):
    sigma: float
    reach: int
    """Pixels by which a pixel is moved at most."""
    passes: int


class Motion(NamedTuple):
    radius: int
    sigma: float


class Zoom(NamedTuple):
    end: float
    step: float


class Snow(NamedTuple):
    mean: float
    deviation: float
    zoom: float
    threshold: float
    motion: Motion
    mix: float
    """How much of the image's own colors is kept."""


class Frost(NamedTuple):
    image: float
    texture: float
    """Factors of the two, which are added."""
    scale: float = 1
    """By which the texture is made smaller."""


class Fog(NamedTuple):
    strength: float
    decay: float
    """By which the fractal's noise shrinks from level to level."""


class Elastic(NamedTuple):
    alpha: float
    """Factor of the smoothed displacements."""
    sigma: float
    affine: float
    """Pixels by which the three points of the affine map move at most."""


class Spatter(NamedTuple):
    mean: float
    deviation: float
    sigma: float
    threshold: float
    strength: float
    """Of water; of mud, the deviation of a Gaussian."""
    is_mud: bool


class Saturation(NamedTuple):
    factor: float
    added: float


GAUSSIAN_NOISE = Levels((0.08, 0.12, 0.18, 0.26, 0.38), (0.04, 0.06, 0.08, 0.09, 0.1))
SHOT_NOISE = Levels((60, 25, 12, 5, 3), (500, 250, 100, 75, 50))
IMPULSE_NOISE = Levels((0.03, 0.06, 0.09, 0.17, 0.27), (0.01, 0.02, 0.03, 0.05, 0.07))
SPECKLE_NOISE = Levels((0.15, 0.2, 0.35, 0.45, 0.6), (0.06, 0.1, 0.12, 0.16, 0.2))
GAUSSIAN_BLUR = Levels((1, 2, 3, 4, 6), (0.4, 0.6, 0.7, 0.8, 1))
DEFOCUS_BLUR = Levels(
    (Disk(3, 0.1), Disk(4, 0.5), Disk(6, 0.5), Disk(8, 0.5), Disk(10, 0.5)),
    (Disk(0.3, 0.4), Disk(0.4, 0.5), Disk(0.5, 0.6), Disk(1, 0.2), Disk(1.5, 0.1)),
)
GLASS_BLUR = Levels(
    (Glass(0.7, 1, 2), Glass(0.9, 2, 1), Glass(1, 2, 3), Glass(1.1, 3, 2), Glass(1.5, 4, 2)),
    (Glass(0.05, 1, 1), Glass(0.25, 1, 1), Glass(0.4, 1, 1), Glass(0.25, 1, 2), Glass(0.4, 1, 2)),
)
MOTION_BLUR = Levels(
    (Motion(10, 3), Motion(15, 5), Motion(15, 8), Motion(15, 12), Motion(20, 15)),
    (Motion(6, 1), Motion(6, 1.5), Motion(6, 2), Motion(8, 2), Motion(9, 2.5)),
)
ZOOM_BLUR = Levels(
    (Zoom(1.11, 0.01), Zoom(1.16, 0.01), Zoom(1.21, 0.02), Zoom(1.26, 0.02), Zoom(1.31, 0.03)),
    (Zoom(1.06, 0.01), Zoom(1.11, 0.01), Zoom(1.16, 0.01), Zoom(1.21, 0.01), Zoom(1.26, 0.01)),
)
SNOW = Levels(
    (
        Snow(0.1, 0.3, 3, 0.5, Motion(10, 4), 0.8),
        Snow(0.2, 0.3, 2, 0.5, Motion(12, 4), 0.7),
        Snow(0.55, 0.3, 4, 0.9, Motion(12, 8), 0.7),
        Snow(0.55, 0.3, 4.5, 0.85, Motion(12, 8), 0.65),
        Snow(0.55, 0.3, 2.5, 0.85, Motion(12, 12), 0.55),
    ),
    (
        Snow(0.1, 0.2, 1, 0.6, Motion(8, 3), 0.95),
        Snow(0.1, 0.2, 1, 0.5, Motion(10, 4), 0.9),
        Snow(0.15, 0.3, 1.75, 0.55, Motion(10, 4), 0.9),
        Snow(0.25, 0.3, 2.25, 0.6, Motion(12, 6), 0.85),
        Snow(0.3, 0.3, 1.25, 0.65, Motion(14, 12), 0.8),
    ),
)
FROST = Levels(
    (Frost(1, 0.4), Frost(0.8, 0.6), Frost(0.7, 0.7), Frost(0.65, 0.7), Frost(0.6, 0.75)),
    (Frost(1, 0.2, 0.2), Frost(1, 0.3, 0.2), Frost(0.9, 0.4, 0.2), Frost(0.85, 0.4, 0.2), Frost(0.75, 0.45, 0.2)),
)
FOG = Levels(
    (Fog(1.5, 2), Fog(2, 2), Fog(2.5, 1.7), Fog(2.5, 1.5), Fog(3, 1.4)),
    (Fog(0.2, 3), Fog(0.5, 3), Fog(0.75, 2.5), Fog(1, 2), Fog(1.5, 1.75)),
)
BRIGHTNESS = Levels((0.1, 0.2, 0.3, 0.4, 0.5), (0.05, 0.1, 0.15, 0.2, 0.3))
CONTRAST = Levels((0.4, 0.3, 0.2, 0.1, 0.05), (0.75, 0.5, 0.4, 0.3, 0.15))
ELASTIC_TRANSFORM = Levels(
    # from a side of 244 pixels, which the authors note should have been 224
    (
        Elastic(488, 170.8, 24.4),
        Elastic(488, 19.52, 48.8),
        Elastic(12.2, 2.44, 4.88),
        Elastic(17.08, 2.44, 4.88),
        Elastic(29.28, 2.44, 4.88),
    ),
    (
        Elastic(0, 0, 2.56),
        Elastic(1.6, 6.4, 2.24),
        Elastic(2.56, 1.92, 1.92),
        Elastic(3.2, 1.28, 1.6),
        Elastic(3.2, 0.96, 0.96),
    ),
)
PIXELATE = Levels((0.6, 0.5, 0.4, 0.3, 0.25), (0.95, 0.9, 0.85, 0.75, 0.65))
JPEG_COMPRESSION = Levels((25, 18, 15, 10, 7), (80, 65, 58, 50, 40))
SPATTER = Levels(
    (
        Spatter(0.65, 0.3, 4, 0.69, 0.6, False),
        Spatter(0.65, 0.3, 3, 0.68, 0.6, False),
        Spatter(0.65, 0.3, 2, 0.68, 0.5, False),
        Spatter(0.65, 0.3, 1, 0.65, 1.5, True),
        Spatter(0.67, 0.4, 1, 0.65, 1.5, True),
    ),
    (
        Spatter(0.62, 0.1, 0.7, 0.7, 0.5, False),
        Spatter(0.65, 0.1, 0.8, 0.7, 0.5, False),
        Spatter(0.65, 0.3, 1, 0.69, 0.5, False),
        Spatter(0.65, 0.1, 0.7, 0.69, 0.6, True),
        Spatter(0.65, 0.1, 0.5, 0.68, 0.6, True),
    ),
)
SATURATE = Levels(
    (Saturation(0.3, 0), Saturation(0.1, 0), Saturation(2, 0), Saturation(5, 0.1), Saturation(20, 0.2)),
    (Saturation(0.3, 0), Saturation(0.1, 0), Saturation(1.5, 0), Saturation(2, 0.1), Saturation(2.5, 0.2)),
)

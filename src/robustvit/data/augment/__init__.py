"""Random changes of training images. One import line a module is what registers it."""

from robustvit.data.augment.base import AnyAugmentation, Augmentation, Scalable
from robustvit.data.augment.canonical import Canonical
from robustvit.data.augment.light import Light
from robustvit.data.augment.mixing import Mixing
from robustvit.data.augment.pad_crop import PadCrop
from robustvit.data.augment.rand_augment import RandAugment
from robustvit.data.augment.random_erasing import RandomErasing

__all__ = [
    "AnyAugmentation",
    "Augmentation",
    "Canonical",
    "Light",
    "Mixing",
    "PadCrop",
    "RandAugment",
    "RandomErasing",
    "Scalable",
]

"""Random changes of training images. One import line a module is what registers it."""

from robustvit.data.augment.base import (
    AnyAugmentation as AnyAugmentation,
    Augmentation as Augmentation,
    Scalable as Scalable,
)
from robustvit.data.augment.canonical import Canonical as Canonical, RandomErasing as RandomErasing
from robustvit.data.augment.corruptions import Corruptions as Corruptions
from robustvit.data.augment.crops import Light as Light, PadCrop as PadCrop
from robustvit.data.augment.mixing import Mixing as Mixing
from robustvit.data.augment.rand_augment import RandAugment as RandAugment

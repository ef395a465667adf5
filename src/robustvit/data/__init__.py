"""Images by name: what is there, how it is read, split and augmented. One import line a module is what registers it."""

from robustvit.data.arrays import Arrays
from robustvit.data.augment import Canonical, Light, Mixing, PadCrop, RandAugment, RandomErasing
from robustvit.data.base import Dataset, Images, Subset, as_pixels
from robustvit.data.digits import Digits
from robustvit.data.feed import Batch, Batches, load_batches
from robustvit.data.folder import Folder
from robustvit.data.generated import Generated, GeneratedImages
from robustvit.data.mixture import Mixture
from robustvit.data.open import dataset_by_name, images_from

__all__ = [
    "Arrays",
    "Batch",
    "Batches",
    "Canonical",
    "Dataset",
    "Digits",
    "Folder",
    "Generated",
    "GeneratedImages",
    "Images",
    "Light",
    "Mixing",
    "Mixture",
    "PadCrop",
    "RandAugment",
    "RandomErasing",
    "Subset",
    "as_pixels",
    "dataset_by_name",
    "images_from",
    "load_batches",
]

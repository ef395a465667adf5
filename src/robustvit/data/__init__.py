"""Images by name: what is there, how it is read, split and augmented. One import line a module is what registers it."""

from robustvit.data.arrays import Arrays
from robustvit.data.augment import PadCrop
from robustvit.data.base import Dataset, Images, Subset, as_pixels
from robustvit.data.digits import Digits
from robustvit.data.folder import Folder
from robustvit.data.open import dataset_by_name, images_from

__all__ = [
    "Arrays",
    "Dataset",
    "Digits",
    "Folder",
    "Images",
    "PadCrop",
    "Subset",
    "as_pixels",
    "dataset_by_name",
    "images_from",
]

"""Images by name: what is there, how it is read, split and augmented. One import line a module is what registers it."""

from robustvit.data.arrays import Arrays
from robustvit.data.augment import Canonical, Light, Mixing, PadCrop, RandAugment, RandomErasing
from robustvit.data.base import Dataset, Images, Subset, as_pixels
from robustvit.data.caltech import Caltech101
from robustvit.data.cifar import Cifar10, Cifar100
from robustvit.data.digits import Digits
from robustvit.data.feed import Batch, Batches, load_batches
from robustvit.data.flowers import Flowers102
from robustvit.data.folder import Folder
from robustvit.data.generated import Generated, GeneratedImages
from robustvit.data.mixture import Mixture
from robustvit.data.open import dataset_by_name, images_from
from robustvit.data.preprocess import Preprocess
from robustvit.data.select import Selection
from robustvit.data.shards import Shards

__all__ = [
    "Arrays",
    "Batch",
    "Batches",
    "Caltech101",
    "Canonical",
    "Cifar10",
    "Cifar100",
    "Dataset",
    "Digits",
    "Flowers102",
    "Folder",
    "Generated",
    "GeneratedImages",
    "Images",
    "Light",
    "Mixing",
    "Mixture",
    "PadCrop",
    "Preprocess",
    "RandAugment",
    "RandomErasing",
    "Selection",
    "Shards",
    "Subset",
    "as_pixels",
    "dataset_by_name",
    "images_from",
    "load_batches",
]

"""Images by name: what is there, how it is read, split and augmented. One import line a module is what registers it."""

from robustvit.data.arrays import Arrays as Arrays
from robustvit.data.augment import (
    Canonical as Canonical,
    Light as Light,
    Mixing as Mixing,
    PadCrop as PadCrop,
    RandAugment as RandAugment,
    RandomErasing as RandomErasing,
)
from robustvit.data.base import Dataset as Dataset, Images as Images, Subset as Subset, as_pixels as as_pixels
from robustvit.data.cifar import Cifar10 as Cifar10, Cifar100 as Cifar100
from robustvit.data.corruptions import corrupted as corrupted
from robustvit.data.feed import Batch as Batch, Batches as Batches, load_batches as load_batches
from robustvit.data.folder import Folder as Folder
from robustvit.data.generated import Generated as Generated, GeneratedImages as GeneratedImages
from robustvit.data.mixture import Mixture as Mixture
from robustvit.data.open import dataset_by_name as dataset_by_name, images_from as images_from
from robustvit.data.preprocess import Preprocess as Preprocess
from robustvit.data.published import Caltech101 as Caltech101, Digits as Digits, Flowers102 as Flowers102
from robustvit.data.sample import Cifar10Sample as Cifar10Sample
from robustvit.data.select import Selection as Selection
from robustvit.data.shards import Shards as Shards

"""Augmentation against the usual pipelines of torchvision and timm, image by image, on the same pictures.

Writes docs/benchmarks-batches.md.
"""

from collections.abc import Callable

import numpy as np
import torch
from measure import ratio, seconds, table, write_page
from PIL import Image
from torch import Tensor
from torchvision import transforms as tv

import robustvit as rv
from robustvit.data import Canonical, Light, Mixing, PadCrop, RandAugment, RandomErasing, as_pixels
from robustvit.data.augment.base import Augmentation

ROUNDS = 7
Pipeline = Callable[[Image.Image], object]


def each(pipeline: Pipeline, images: Tensor) -> Tensor:
    """What a loader does: every image a picture, changed, and all of them a batch again."""
    pictures = images.permute(0, 2, 3, 1).numpy()
    made = [np.asarray(pipeline(Image.fromarray(picture))) for picture in pictures]
    return torch.from_numpy(np.stack(made)).permute(0, 3, 1, 2).contiguous()


def pairs(size: int) -> dict[str, tuple[Augmentation, Pipeline]]:
    from timm.data.auto_augment import rand_augment_transform

    crop = tv.RandomResizedCrop(size, interpolation=tv.InterpolationMode.BICUBIC)
    flip, jitter = tv.RandomHorizontalFlip(), tv.ColorJitter(0.4, 0.4, 0.4)
    rand = rand_augment_transform("rand-m9-mstd0.5-inc1-mmax9", {"translate_const": 10, "img_mean": (124, 116, 104)})
    return {
        "pad_crop": (PadCrop(), tv.Compose([tv.RandomCrop(size, padding=4), flip])),
        "light without jitter": (Light(jitter=0), tv.Compose([crop, flip])),
        "light": (Light(), tv.Compose([crop, flip, jitter])),
        "rand_augment": (RandAugment(), rand),
        "canonical without erasing": (Canonical(random_erasing=None), tv.Compose([crop, flip, rand])),
    }


def rows(count: int, size: int) -> list[list[str]]:
    from timm.data import Mixup
    from timm.data.random_erasing import RandomErasing as TimmErasing

    images = torch.randint(0, 256, (count, 3, size, size), dtype=torch.uint8)
    random = rv.sample_streams(0, range(count))
    found = []

    def add(name: str, ours: Callable[[], object], theirs: Callable[[], object]) -> None:
        against = ratio(ours, theirs, ROUNDS)
        each_image = min(seconds(ours) for _ in range(ROUNDS)) / count
        found.append([f"{name}, {count} images of {size}x{size}", f"{against:.2f}", f"{1e6 * each_image:.0f}"])

    for name, (ours, theirs) in pairs(size).items():
        add(name, lambda ours=ours: ours(images, random), lambda theirs=theirs: each(theirs, images))  # type: ignore[misc]
    x, y = as_pixels(images), torch.arange(count) % 10
    erasing = TimmErasing(0.25, mode="pixel", device="cpu")
    add("random_erasing", lambda: RandomErasing()(images, random), lambda: erasing(x.clone()))
    mixup, step = Mixup(0.8, 1.0, num_classes=10), rv.sample_streams(0, [0])
    mixing = Mixing()

    def mixed() -> object:
        partners = mixing.partners(torch.arange(count), count, step)
        soft = torch.nn.functional.one_hot(y, 10).to(x.dtype)
        return mixing.blend(x, soft, x[partners], soft[partners], step)

    add("mixing", mixed, lambda: mixup(x.clone(), y))
    return found


def main() -> None:
    torch.set_num_threads(1)
    lines = [
        "# Benchmarks of augmentation",
        "",
        "Ratios measured alternately in one run (`make bench`) on one thread; below 1 ours is faster. The others are",
        "torchvision's and timm's pipelines on Pillow images, one at a time; for random erasing and mixing,",
        "timm's on batches. Ours also seeds every image. Times depend on the load of the machine; ratios less so.",
        "",
        *table(["augmentation", "relative time", "microseconds per image"], rows(256, 32) + rows(24, 224)),
    ]
    write_page("benchmarks-batches.md", lines)


if __name__ == "__main__":
    main()

"""Law 2: rows of a batch made alone are those of the whole batch."""

import itertools

import numpy as np
import pytest
import torch
from PIL import Image

from robustvit.core.component import build, registered
from robustvit.data import Folder
from robustvit.data.arrays import InMemory
from robustvit.data.augment import Mixing
from robustvit.data.base import has_whole
from robustvit.data.feed import Batches
from robustvit.data.mixture import Mixture

ROWS = ([0], [11, 3, 3], [5, 6, 7, 8], list(range(12)))
REPEATED = ([30, 2, 17], list(range(12, 24)))


def images(title: str, floats: bool = False) -> InMemory:
    x = torch.randint(0, 256, (40, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(len(title)))
    return InMemory(x.float() / 255 if floats else x, torch.arange(40) % 10, title)


def check(batches: Batches) -> None:
    for step in (0, len(batches) - 1):
        whole = batches[step]
        assert len(whole.images) == batches.rows
        for rows in (*ROWS, *(REPEATED if batches.repeats else ())):
            part = batches.take(step, torch.tensor(rows))
            for some, all_of_them in zip(part, whole, strict=True):
                assert some.dtype == all_of_them.dtype
                assert torch.equal(some, all_of_them[rows])


@pytest.mark.parametrize("augmentation", [None, *registered("augmentation")])
@pytest.mark.parametrize("generated", [None, "uint8", "float"])
def test_in_memory(augmentation, generated):
    other = images("generated", generated == "float") if generated else None
    for mixing, repeats, intensity in itertools.product((None, "batch", "image"), (0, 2), (None, lambda p: 0.5)):
        batches = Batches(
            Mixture(images("real"), 12, 10, 3, "main", other, 0.35 if other else 0.0),
            2,
            build("augmentation", augmentation) if augmentation else None,
            Mixing(each=mixing) if mixing else None,
            intensity,
            repeats,
        )
        check(batches)


@pytest.mark.parametrize("augmentation", ["canonical", "light"])
@pytest.mark.parametrize("mixing", [None, Mixing(each="image")])
@pytest.mark.parametrize("repeats", [0, 2])
def test_crops_of_whole_pictures(augmentation, mixing, repeats, tmp_path):
    random = np.random.default_rng(0)
    for number in range(24):
        path = tmp_path / f"class{number % 2}" / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(random.integers(0, 256, (20, 30, 3), dtype=np.uint8)).save(path)
    real = Folder(path=str(tmp_path), preprocess={"how": "crop", "size": 8}).open("train")
    mixture = Mixture(real, 12, 10, 0, "main", images("generated"), 0.35)
    assert has_whole(mixture.real)
    check(Batches(mixture, 1, build("augmentation", augmentation), mixing, None, repeats))


def test_rows_that_are_not_wanted_are_not_read():
    class Counted(InMemory):
        read = 0

        def take(self, indices):
            Counted.read += len(indices)
            return super().take(indices)

    real = images("real")
    batches = Batches(Mixture(Counted(*real.take(torch.arange(40)), "real"), 12, 10), 1, mixing=Mixing())
    batches.take(1, torch.tensor([4, 5, 6]))
    assert Counted.read <= 6
    Counted.read = 0
    Batches(batches.mixture, 1, build("augmentation", "pad_crop"), repeats=2)[0]
    assert Counted.read == 12, "a batch is read once, whatever is made of it"

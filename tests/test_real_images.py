"""Real photographs, where ROBUSTVIT_DATA has them."""

import io
import os
import tarfile
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import nn

import robustvit as rv
from robustvit.data import Folder, Shards, images_from, shards as shards_module

DATA = Path(os.environ.get("ROBUSTVIT_DATA", "nowhere"))
SHARDS = sorted(DATA.glob("cifar10/test-*.tar*"))
IMAGENET = DATA / "imagenet-sample" / "val-0000.tar"


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    """The first 60 test images of CIFAR-10 as a folder of pictures."""
    if not SHARDS:
        pytest.skip("ROBUSTVIT_DATA has no cifar10/test-*.tar")
    root = tmp_path_factory.mktemp("photographs")
    for number in range(10):
        (root / f"class{number}").mkdir()
    pictures: dict[str, dict[str, bytes]] = {}
    with tarfile.open(SHARDS[0]) as archive:
        for member in archive:
            stem, _, suffix = member.name.rpartition(".")
            file = archive.extractfile(member)
            assert file is not None
            pictures.setdefault(stem, {})[suffix] = file.read()
            if len(pictures) > 60:
                break
    for stem, parts in list(pictures.items())[:60]:
        Image.open(io.BytesIO(parts["jpg"])).save(root / f"class{int(parts['cls'])}" / f"{Path(stem).name}.png")
    return root


def test_a_folder_of_photographs_is_read_and_attacked(photographs):
    images = Folder(path=photographs).open("test")
    x, y = images.take(torch.arange(60))
    assert x.shape == (60, 3, 32, 32)
    assert 30 < x.float().std() < 90, "photographs, not noise"
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 10))
    with torch.no_grad():
        y = model(x.float() / 255).argmax(1)  # an untrained model's own opinion stands for the truth
    result = rv.evaluate(model, (x, y), suite=["fgsm", "pgd-5"], threat=rv.LpBall("inf", "8/255"), quiet=True)
    assert result.clean_accuracy == 1
    assert result.robust_accuracy < 0.5


def test_cifar10_is_found_in_its_shards(photographs, tmp_path, monkeypatch):
    monkeypatch.setenv("ROBUSTVIT_CACHE", str(tmp_path))
    images = images_from("cifar10")
    assert images.title.endswith("/test-*.tar* (not the published images: pixels, labels or order differ)")
    x, y = images.take(torch.arange(len(images)))
    assert y.bincount().tolist() == [1000] * 10
    assert 100 < x.float().mean() < 140
    some = Folder(path=photographs).open("test")
    by_name = {Path(name).stem: number for number, name in enumerate(some.names)}
    rows = torch.tensor([by_name[f"{number:06d}"] for number in range(60)])
    for one, other in zip(images.take(torch.arange(60)), some.take(rows), strict=True):
        assert torch.equal(one, other)


def test_a_few_classes_of_imagenet_by_their_synsets(tmp_path, monkeypatch):
    if not IMAGENET.exists():
        pytest.skip("ROBUSTVIT_DATA has no imagenet-sample/val-0000.tar")
    monkeypatch.setenv("ROBUSTVIT_CACHE", str(tmp_path))
    monkeypatch.setattr(shards_module, "SMALL", 0)
    (tmp_path / "three.txt").write_text("n03000684\nn01440764\nn02085620\n")
    settings = {"path": str(IMAGENET), "preprocess": {"how": "crop", "size": 64}}
    assert Shards(**settings).open("test").num_classes == 1000
    images = Shards(**settings, select={"classes": tmp_path / "three.txt"}).open("test")
    x, y = images.take(torch.arange(3))
    assert x.shape == (3, 3, 64, 64)
    assert y.tolist() == [1, 2, 0]
    assert images.num_classes == 3

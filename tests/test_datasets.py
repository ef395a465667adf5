"""Published data sets: found on disk, refused with a clear message where they are missing, never unpickled blindly."""

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.io import savemat

from robustvit.core.component import build
from robustvit.core.errors import UserError
from robustvit.data import Caltech101, Cifar10, Cifar100, Flowers102, images_from
from robustvit.data.cache import cache_folder
from shards import encoded, random_images, write_shard


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("ROBUSTVIT_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("ROBUSTVIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_batch(path, images, **labels):
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = images.transpose(0, 3, 1, 2).reshape(len(images), 3072)
    path.write_bytes(pickle.dumps({"data": rows, "batch_label": "a test", **labels}, protocol=2))


def write_cifar10(folder):
    """As published: five batches to train on and one for testing, rows of red, green and blue planes."""
    images = random_images(60, (32, 32))
    labels = [number % 10 for number in range(60)]
    for number in range(5):
        some = slice(10 * number, 10 * number + 10)
        write_batch(folder / f"data_batch_{number + 1}", images[some], labels=labels[some])
    write_batch(folder / "test_batch", images[50:], labels=labels[50:])
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": [f"c{n}" for n in range(10)]}, protocol=2))
    return images, labels


@pytest.mark.parametrize("where", ["data/cifar10/cifar-10-batches-py", "data/cifar-10-batches-py"])
def test_cifar10_in_torchvisions_layout(place, where):
    images, labels = write_cifar10(place / where)
    train, test = Cifar10().open("train"), images_from("cifar10")
    assert (len(train), len(test), test.num_classes) == (50, 10, 10)
    assert train.title == f"cifar10/train of {place / where} (not the published images: 50 instead of 50,000)"
    rows = torch.tensor([49, 0, 17])
    x, y = train.take(rows)
    assert np.array_equal(x.permute(0, 2, 3, 1).numpy(), images[rows.numpy()])
    assert y.tolist() == [labels[row] for row in rows]
    assert np.array_equal(test.take(torch.arange(10))[0].permute(0, 2, 3, 1).numpy(), images[50:])
    chosen = Cifar10(select={"classes": ["c7", "c2"]}).open("train")
    assert chosen.take(torch.arange(4))[1].tolist() == [1, 0, 1, 0]
    for root in (place / where, (place / where).parent):
        assert len(Cifar10(root=root).open("test")) == 10


def test_cifar10_in_shards_and_which_of_both_is_said(place):
    images = random_images(20, (32, 32))
    write_shard(place / "data" / "cifar10" / "train-0000.tar.gz", images[:12], [1] * 12)
    write_shard(place / "data" / "cifar10" / "test-0000.tar", images[12:], [2] * 8)
    train, test = Cifar10().open("train"), Cifar10().open("test")
    assert (len(train), len(test), train.num_classes) == (12, 8, 10)
    assert train.title == (
        f"cifar10/train of {place}/data/cifar10/train-*.tar* (not the published images: 12 instead of 50,000)"
    )
    assert np.array_equal(test.take(torch.arange(8))[0].permute(0, 2, 3, 1).numpy(), images[12:])
    write_cifar10(place / "data" / "cifar10" / "cifar-10-batches-py")
    assert Cifar10().open("train").title.partition(" (")[0].endswith("cifar-10-batches-py"), (
        "the published files go first"
    )


def test_cifar100_has_fine_labels(place):
    images = random_images(8, (32, 32))
    folder = place / "elsewhere" / "cifar-100-python"
    for name, some in (("train", slice(0, 5)), ("test", slice(5, 8))):
        write_batch(folder / name, images[some], fine_labels=[99, 3, 3, 0, 50][: len(images[some])], coarse_labels=[])
    data = Cifar100(root=place / "elsewhere")
    assert data.open("train").take(torch.arange(5))[1].tolist() == [99, 3, 3, 0, 50]
    assert data.open("test").num_classes == 100


def test_a_batch_that_would_run_code_is_refused(place):
    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(place / "sprung"),)

    folder = place / "data" / "cifar-10-batches-py"
    write_cifar10(folder)
    for trap in (Trap(), {"data": Trap(), "labels": []}, np.array([Trap()], dtype=object)):
        (folder / "test_batch").write_bytes(pickle.dumps(trap, protocol=2))
        with pytest.raises(UserError, match="asks for posix.mkdir"):
            Cifar10().open("test")
    assert not (place / "sprung").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a whole batch"),
        (b"noise" * 50, "not a whole batch"),
        (pickle.dumps([1], protocol=2), "not a batch of CIFAR's but list"),
        (pickle.dumps({"data": np.zeros((2, 9), np.uint8), "labels": [0, 1]}, protocol=2), "uint8 (N, 3072)"),
        (pickle.dumps({"data": np.zeros((2, 3072), np.uint8), "labels": [0]}, protocol=2), "a list of 2 labels"),
        (pickle.dumps({"data": np.zeros((2, 3072), np.uint8)}, protocol=2), "a list of 2 labels"),
    ],
)
def test_broken_batches_are_reported(place, content, message):
    folder = place / "data" / "cifar-10-batches-py"
    write_cifar10(folder)
    (folder / "test_batch").write_bytes(content)
    with pytest.raises(UserError) as caught:
        Cifar10().open("test")
    assert message in str(caught.value)
    assert "test_batch" in str(caught.value)
    (folder / "data_batch_3").unlink()
    with pytest.raises(UserError, match="lacks data_batch_3"):
        Cifar10().open("train")


def write_pictures(folder, names, size=(20, 16)):
    folder.mkdir(parents=True, exist_ok=True)
    images = random_images(len(names), size)
    for name, image in zip(names, images, strict=True):
        (folder / name).write_bytes(encoded(image, "jpg"))


@pytest.mark.parametrize("inside", ["caltech101/101_ObjectCategories", "101_ObjectCategories"])
def test_caltech101_draws_its_training_images_once_and_for_all(place, inside):
    root = place / "data" / "caltech101" / inside
    for name, count in (("ant", 40), ("BACKGROUND_Google", 50), ("crab", 33)):
        write_pictures(root / name, [f"image_{number:04d}.jpg" for number in range(1, count + 1)])
    data = Caltech101(preprocess={"how": "squash", "size": 8})
    train, test = data.open("train"), data.open("test")
    assert (len(train), len(test), train.num_classes) == (60, 13, 2), "clutter is no class"
    assert not set(train.names) & set(test.names)
    assert Caltech101().open("train").names == train.names
    more = Caltech101(train_per_class=32).open("train")
    assert set(train.names) < set(more.names), "more images only add to the fewer"
    x, y = test.take(torch.arange(13))
    assert x.shape == (13, 3, 8, 8)
    assert y.tolist() == [0] * 10 + [1] * 3
    assert "30 of each class for training" in test.title
    assert len(Caltech101(select={"classes": ["crab"]}).open("test")) == 3


def test_flowers102_has_its_published_split(place):
    folder = place / "data" / "flowers102" / "flowers-102"
    write_pictures(folder / "jpg", [f"image_{number:05d}.jpg" for number in range(1, 11)])
    savemat(folder / "imagelabels.mat", {"labels": np.arange(1, 11) * 10})
    savemat(folder / "setid.mat", {"trnid": [3, 1], "valid": [2], "tstid": [10, 4, 5]})
    test = Flowers102().open("test")
    assert test.take(torch.tensor([0, 1, 2]))[1].tolist() == [99, 39, 49]
    assert test.names[0] == "image_00010.jpg"
    assert test.num_classes == 102
    assert [len(Flowers102(train_on=some).open("train")) for some in ("train", "train+val")] == [2, 3]
    assert "flowers102/train+val" in Flowers102().open("train").title
    for unknown in (0, 11):
        savemat(folder / "setid.mat", {"trnid": [3, 1], "valid": [2], "tstid": [10, unknown, 5]})
        with pytest.raises(UserError, match="no label for"):
            Flowers102().open("test")
    (folder / "setid.mat").write_bytes(b"noise")
    with pytest.raises(UserError, match="setid.mat: no MATLAB file"):
        Flowers102().open("test")
    (folder / "setid.mat").unlink()
    with pytest.raises(UserError, match="setid.mat: not there"):
        Flowers102().open("test")


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "caltech101", "flowers102"])
def test_what_is_not_there_is_reported_with_the_places_and_the_ways_to_get_it(place, name, monkeypatch):
    with pytest.raises(UserError) as caught:
        images_from(name)
    message = str(caught.value)
    assert str(place / "data" / name) in message
    assert "data.download=true" in message
    assert "ROBUSTVIT_DATA" in message
    assert "\n" not in message
    with pytest.raises(UserError, match="elsewhere"):
        build("data", {"name": name, "root": "elsewhere"}).open("train")
    assert not list(place.iterdir()), "a search makes no folder"
    monkeypatch.delenv("ROBUSTVIT_DATA")
    with pytest.raises(UserError, match=f"'data/{name}"):
        images_from(name)


def test_a_download_is_asked_for_and_may_fail(place, monkeypatch):
    asked = []

    def fail(url, *args, **kwargs):
        asked.append(url)
        raise OSError("no network")

    monkeypatch.setattr("torchvision.datasets.cifar.download_and_extract_archive", fail)
    with pytest.raises(UserError, match=r"cifar10: can't be downloaded into .*cifar10' \(no network\)"):
        Cifar10(download=True).open("test")
    assert asked

    def arrive(url, root, **kwargs):
        write_cifar10(place / "data" / "cifar10" / "cifar-10-batches-py")

    monkeypatch.setattr("torchvision.datasets.cifar.download_and_extract_archive", arrive)
    monkeypatch.setattr("torchvision.datasets.cifar.check_integrity", lambda path, md5=None: os.path.exists(path))
    assert len(Cifar10(download=True).open("test")) == 10


def test_the_cache_lies_where_it_is_asked_for_or_with_the_users_other_caches(tmp_path, monkeypatch):
    monkeypatch.setenv("ROBUSTVIT_CACHE", str(tmp_path / "mine"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    assert cache_folder() == tmp_path / "mine"
    monkeypatch.delenv("ROBUSTVIT_CACHE")
    assert cache_folder() == tmp_path / "caches" / "robustvit"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "robustvit"

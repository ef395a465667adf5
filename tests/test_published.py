"""Whether a copy of CIFAR-10 is the published one is part of its title, and so of every result on it."""

import hashlib

import numpy as np
import pytest
import torch
from torch import nn

import robustvit as rv
from robustvit.data import Cifar10, Cifar100, cifar
from robustvit.data.arrays import InMemory
from robustvit.data.base import hold_out
from robustvit.data.cifar import records_sha256
from shards import random_images, write_shard
from test_datasets import place as place, write_batch

COUNT = 20
NOTE = " (not the published images: pixels, labels or order differ)"


@pytest.fixture
def published(monkeypatch):
    """A test set of 20 images in place of the published one."""
    images, labels = random_images(COUNT, (32, 32)), [number % 10 for number in range(COUNT)]
    records = b"".join(
        bytes([label]) + image.transpose(2, 0, 1).tobytes() for image, label in zip(images, labels, strict=True)
    )
    monkeypatch.setattr(cifar, "_WHOLE", {"test": COUNT})
    monkeypatch.setattr(Cifar10, "published", {"test": hashlib.sha256(records).hexdigest()})
    return images, labels


def opened(folder, images, labels, **settings):
    write_batch(folder / "cifar-10-batches-py" / "test_batch", images, labels=labels)
    return Cifar10(root=folder, **settings).open("test")


def as_tensors(images, labels):
    return InMemory(torch.from_numpy(images.transpose(0, 3, 1, 2).copy()), torch.tensor(labels), "images")


@pytest.mark.parametrize("split", ["train", "test"])
def test_the_digests_are_those_of_the_published_cifar10(split, exact_cifar10):
    assert records_sha256(as_tensors(*exact_cifar10(split))) == Cifar10.published[split]


def test_the_published_files_have_a_plain_title(exact_cifar10, place):
    images = opened(place, *exact_cifar10("test"))
    assert images.title == f"cifar10/test of {place}/cifar-10-batches-py"


@pytest.mark.parametrize("change", ["nothing", "pixel", "label", "order", "other images"])
def test_a_folder_with_any_difference_says_so(change, published, place):
    images, labels = published[0].copy(), list(published[1])
    if change == "pixel":
        images[17, 31, 31, 2] ^= 1
    elif change == "label":
        labels[19] = 3
    elif change == "order":
        images[[0, 10]] = images[[10, 0]]  # of one class
    elif change == "other images":
        images = random_images(COUNT, (32, 32), seed=1)
    title = opened(place, images, labels).title
    assert title == f"cifar10/test of {place}/cifar-10-batches-py" + ("" if change == "nothing" else NOTE)


@pytest.mark.parametrize(("kind", "note"), [("png", ""), ("jpg", NOTE)])
def test_shards_are_judged_by_their_decoded_pixels(kind, note, published, place):
    write_shard(place / "test-0.tar", *published, kind=kind)
    assert Cifar10(root=place).open("test").title == f"cifar10/test of {place}/test-*.tar*{note}"


def test_larger_pictures_are_told_by_the_first_one(published, place, monkeypatch):
    write_shard(place / "test-0.tar", random_images(COUNT, (40, 48)), published[1])
    monkeypatch.setattr(cifar, "records_sha256", None)  # would decode them all
    title = Cifar10(root=place).open("test").title
    assert title.endswith(" (not the published images: 48x40 pixels instead of 32x32)")


def test_parts_and_results_keep_the_note(published, place):
    images, labels = published
    images[0] ^= 1
    some = opened(place, images, labels, select={"images": [3, 1, 8], "classes": [1, 3, 8]})
    assert some.title.startswith(f"cifar10/test of {place}/cifar-10-batches-py{NOTE}, 3 images")
    assert all(NOTE in part.title for part in hold_out(opened(place, images, labels), 5, seed=0))
    model = nn.Sequential(nn.Flatten(), nn.Linear(3072, 10))
    data = {"name": "cifar10", "root": place}
    result = rv.evaluate(model, data, suite="clean", threat=rv.LpBall("inf", 0.1), images=5, quiet=True)
    assert result.provenance.data.endswith(NOTE)
    (warning,) = (one for one in result.warnings if one.name == "other-images")
    assert warning.observation == "cifar10/test: not the published images: pixels, labels or order differ"
    assert "don't compare" in result.summary()


def test_of_cifar100_only_the_number_and_the_size_are_known(published, place):
    write_batch(place / "cifar-100-python" / "test", published[0], fine_labels=published[1])
    assert Cifar100(root=place).open("test").title == f"cifar100/test of {place}/cifar-100-python"
    write_batch(place / "cifar-100-python" / "test", published[0][:9], fine_labels=published[1][:9])
    assert Cifar100(root=place).open("test").title.endswith("(not the published images: 9 instead of 20)")


def test_the_digest_is_that_of_the_binary_version():
    images = np.arange(2 * 3072, dtype=np.uint8).reshape(2, 3, 32, 32)
    records = b"\x07" + images[0].tobytes() + b"\x02" + images[1].tobytes()
    stored = InMemory(torch.from_numpy(images), torch.tensor([7, 2]), "two")
    assert records_sha256(stored) == hashlib.sha256(records).hexdigest()

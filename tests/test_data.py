"""Images by name, path or hand."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import IterableDataset, TensorDataset

from robustvit.core.component import build, registered
from robustvit.core.errors import UserError
from robustvit.core.streams import sample_streams
from robustvit.data import Arrays, Digits, Folder, PadCrop, as_pixels, images_from
from robustvit.data.base import choose_images, data_fingerprint, hold_out
from robustvit.data.preprocess import Preprocess


def pictures(root, sizes=((8, 8),), classes=("cat", "dog"), split=None):
    rng = np.random.default_rng(0)
    for name in classes:
        folder = root / split / name if split else root / name
        folder.mkdir(parents=True)
        for number, (width, height) in enumerate(sizes):
            Image.fromarray(rng.integers(0, 256, (height, width, 3), np.uint8)).save(folder / f"{number}.png")


def test_digits_are_grey_and_its_splits_share_nothing():
    train, test = Digits().open("train"), Digits().open("test")
    assert (len(train), len(test), train.num_classes) == (1437, 360, 10)
    x, y = test.take(torch.arange(360))
    assert x.dtype == torch.uint8
    assert x.shape == (360, 3, 8, 8)
    assert x.max() == 255
    assert torch.equal(x[:, 0], x[:, 2])
    assert set(y.tolist()) == set(range(10))


@pytest.fixture
def npz(tmp_path):
    rng = np.random.default_rng(1)
    arrays = {"image": rng.integers(0, 256, (30, 6, 5, 3), np.uint8), "label": np.arange(30) % 4}
    np.savez(tmp_path / "plain.npz", **arrays)
    np.savez_compressed(tmp_path / "packed.npz", **arrays)
    np.save(tmp_path / "image.npy", arrays["image"])
    np.save(tmp_path / "label.npy", arrays["label"])
    return tmp_path, arrays


@pytest.mark.parametrize("name", ["plain.npz", "packed.npz", "image.npy"])
def test_arrays_are_mapped_not_loaded(npz, name, monkeypatch):
    folder, arrays = npz
    monkeypatch.setenv("ROBUSTVIT_CACHE", str(folder / "cache"))
    images = images_from(str(folder / name))
    rows = torch.tensor([29, 0, 7])
    x, y = images.take(rows)
    assert np.array_equal(x.permute(0, 2, 3, 1).numpy(), arrays["image"][rows.numpy()])
    assert y.tolist() == arrays["label"][rows.numpy()].tolist()
    assert images.num_classes is None, "labels seen are no proof of how many classes there are"
    assert isinstance(images.images, np.memmap)


def test_a_huge_file_needs_no_memory(tmp_path):
    path = tmp_path / "huge.npy"
    array = np.lib.format.open_memmap(path, mode="w+", dtype=np.uint8, shape=(3_000_000, 32, 32, 3))  # 9 GB, sparse
    array[-1] = 7
    del array
    np.save(tmp_path / "label.npy", np.zeros(3_000_000, np.uint8))
    x, _ = Arrays(path=str(path)).open("train").take(torch.tensor([0, 2_999_999]))
    assert x.flatten(1).float().mean(1).tolist() == [0, 7]


def test_split_names_the_file(npz):
    folder, arrays = npz
    np.savez(folder / "d-train.npz", **{key: value[:20] for key, value in arrays.items()})
    np.savez(folder / "d-test.npz", **{key: value[20:] for key, value in arrays.items()})
    data = Arrays(path=str(folder / "d-{split}.npz"))
    assert (len(data.open("train")), len(data.open("test"))) == (20, 10)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"image": np.zeros((3, 4, 4, 3), np.float32), "label": np.zeros(3, int)}, "uint8"),
        ({"image": np.zeros((3, 3, 4, 4), np.uint8), "label": np.zeros(3, int)}, "uint8"),
        ({"image": np.zeros((3, 4, 4, 3), np.uint8), "label": np.zeros(2, int)}, "3 images"),
        ({"image": np.zeros((3, 4, 4, 3), np.uint8), "label": np.zeros(3)}, "whole labels"),
        ({"pictures": np.zeros((3, 4, 4, 3), np.uint8)}, "no array 'image', only: pictures"),
        ({"image": np.array([{}], dtype=object), "label": np.zeros(1, int)}, "Python objects"),
    ],
)
def test_arrays_of_another_kind_are_refused(tmp_path, arrays, message):
    np.savez(tmp_path / "x.npz", **arrays)
    with pytest.raises(UserError, match=message):
        images_from(tmp_path / "x.npz")


def test_a_folder_of_pictures(tmp_path):
    pictures(tmp_path / "flat", sizes=((8, 8), (8, 8)))
    flat = images_from(tmp_path / "flat")
    x, y = flat.take(torch.tensor([0, 3]))
    assert (len(flat), flat.num_classes, x.shape, y.tolist()) == (4, 2, (2, 3, 8, 8), [0, 1])
    with Image.open(tmp_path / "flat" / "dog" / "1.png") as picture:
        assert np.array_equal(x[1].permute(1, 2, 0).numpy(), np.asarray(picture))
    pictures(tmp_path / "split", split="train")
    pictures(tmp_path / "split", split="val", sizes=((8, 8),) * 3)
    data = Folder(path=tmp_path / "split")
    assert (len(data.open("train")), len(data.open("test"))) == (2, 6)


def test_preprocessing_makes_sizes_equal(tmp_path):
    pictures(tmp_path, sizes=((20, 30), (41, 17), (9, 9)))
    with pytest.raises(UserError, match="differ in size"):
        images_from(tmp_path).take(torch.arange(3))
    for how in ("crop", "squash"):
        data = Folder(path=tmp_path, preprocess={"how": how, "size": 16})
        assert data.open("test").take(torch.arange(6))[0].shape == (6, 3, 16, 16)
    with pytest.raises(ValueError, match="needs a size"):
        Preprocess(how="crop")


def test_broken_pictures_and_empty_folders_are_reported(tmp_path):
    (tmp_path / "cat").mkdir()
    with pytest.raises(UserError, match="holds no images"):
        images_from(tmp_path)
    (tmp_path / "cat" / "a.png").write_bytes(b"noise")
    with pytest.raises(UserError, match=r"a\.png"):
        images_from(tmp_path).take(torch.tensor([0]))


def test_pairs_and_datasets_keep_their_floats():
    x, y = torch.rand(5, 3, 4, 4, dtype=torch.float64), torch.arange(5)
    assert torch.equal(images_from((x, y)).take(torch.tensor([2]))[0], x[2:3])
    assert torch.equal(images_from((x.numpy(), y.numpy())).take(torch.tensor([2]))[0], x[2:3])
    assert torch.equal(images_from(TensorDataset(x, y)).take(torch.tensor([4, 2]))[0], x[[4, 2]])


class Stream(IterableDataset):
    def __iter__(self):
        return iter([])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ((torch.rand(5, 4, 4, 3), torch.arange(5)), "shape"),
        ((torch.rand(5, 3, 4, 4), torch.arange(4)), "5 images need"),
        ((torch.rand(5, 3, 4, 4), torch.rand(5)), "class indices"),
        ((torch.zeros(5, 3, 4, 4, dtype=torch.int32), torch.arange(5)), "uint8 or floats"),
        (Stream(), "IterableDataset"),
        ("digts", "did you mean 'digits'"),
        ("missing.npz", "no file"),
        (3, "not int"),
    ],
)
def test_data_of_another_kind_is_refused(data, message):
    with pytest.raises(UserError, match=message):
        images_from(data)


def test_the_hold_out_is_disjoint_seeded_and_complete():
    images = Digits().open("train")
    kept, held = hold_out(images, 100, seed=1)
    assert len(kept) + len(held) == len(images)
    assert not set(kept.indices.tolist()) & set(held.indices.tolist())
    assert torch.equal(hold_out(images, 100, seed=1)[1].indices, held.indices)
    assert not torch.equal(hold_out(images, 100, seed=2)[1].indices, held.indices)
    indices, rule = choose_images(images, 50, 3)
    assert rule == "50 of 1437 at random, seed 3"
    assert data_fingerprint(images, indices) == data_fingerprint(images, indices)
    assert data_fingerprint(images, indices) != data_fingerprint(images, choose_images(images, 50, 4)[0])


@pytest.mark.parametrize("name", registered("augmentation"))
def test_augmentation_is_each_images_own(name):
    x, _ = Digits().open("train").take(torch.arange(12))
    for images in (x, as_pixels(x)):
        made = build("augmentation", name)(images, sample_streams(0, range(12)))
        assert made.shape == images.shape
        assert made.dtype == images.dtype
        assert torch.equal(made[4:6], build("augmentation", name)(images[4:6], sample_streams(0, [4, 5])))
        assert not torch.equal(made, build("augmentation", name)(images, sample_streams(1, range(12))))


def test_pad_crop_moves_and_mirrors_whole_images():
    image = torch.arange(1, 17).view(1, 1, 4, 4).expand(64, 3, 4, 4)
    made = PadCrop(pad=1, flip=True)(image, sample_streams(0, range(64)))
    padded = torch.nn.functional.pad(image[0, 0], [1] * 4)
    allowed = [padded[i : i + 4, j : j + 4] for i in range(3) for j in range(3)]
    allowed += [crop.flip(1) for crop in allowed]
    seen = {next(k for k, crop in enumerate(allowed) if torch.equal(one[0], crop)) for one in made}
    assert len(seen) > 12

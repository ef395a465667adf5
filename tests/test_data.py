"""Images by name, path or hand."""

import numpy as np
import pytest
import torch
from PIL import Image
from timm.data.constants import DEFAULT_CROP_PCT
from torch.utils.data import IterableDataset, TensorDataset
from torchvision.transforms.v2 import CenterCrop, Compose, InterpolationMode, Resize, functional

import robustvit as rv
from robustvit.core.component import build, registered
from robustvit.core.errors import UserError
from robustvit.core.streams import sample_streams
from robustvit.data import Arrays, Digits, Folder, PadCrop, Shards, as_pixels, images_from
from robustvit.data.base import Cut, choose_images, data_fingerprint, hold_out
from robustvit.data.open import dataset_by_name
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


def test_an_unknown_split_is_refused():
    with pytest.raises(UserError, match="split: train or test, not 'trian'"):
        images_from("digits", "trian")


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
    with pytest.raises(ValueError, match="size: 8 needs how: crop or how: squash"):
        Preprocess(size=8)


def random_picture(width, height):
    return Image.fromarray(np.random.default_rng(width).integers(0, 256, (height, width, 3), np.uint8))


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic"])
@pytest.mark.parametrize("side", [(40, 60), (60, 40), (32, 32), (8, 12), (12, 8)])
def test_preprocessing_is_torchvisions(side, interpolation):
    picture, mode = random_picture(*side), InterpolationMode(interpolation)
    settings = {"size": 16, "interpolation": interpolation}
    for shorter in (16, 20, 32):
        made = Preprocess(how="crop", crop_fraction=16 / shorter, **settings)(picture)
        assert np.array_equal(made, np.asarray(Compose([Resize(shorter, mode), CenterCrop(16)])(picture)))
    squashed = Preprocess(how="squash", **settings)
    assert np.array_equal(squashed(picture), np.asarray(Resize((16, 16), mode)(picture)))
    cut = Cut(lambda row, height, width: (row, row + 1, height - 3, width - 5), interpolation)
    expected = functional.resized_crop(picture, 2, 3, side[1] - 3, side[0] - 5, [16, 16], mode)
    assert np.array_equal(squashed.cut(picture, 2, cut), np.asarray(expected))
    assert np.array_equal(Preprocess()(picture), np.asarray(picture))


def test_the_center_of_a_picture_with_an_odd_margin():
    picture = random_picture(18, 29)
    made = Preprocess(how="crop", size=16, crop_fraction=16 / 18)(picture)
    assert np.array_equal(made, np.asarray(picture)[6:22, 1:17])


def test_timms_names_of_the_preprocessing():
    assert Preprocess().crop_fraction == DEFAULT_CROP_PCT
    crop = Preprocess(how="crop", size=8, crop_fraction=0.9, interpolation="bilinear")
    assert crop.timm_config() == {"interpolation": "bilinear", "crop_pct": 0.9, "crop_mode": "center"}
    squash = Preprocess(how="squash", size=8, crop_fraction=0.9)
    assert squash.timm_config() == {"interpolation": "bicubic", "crop_pct": 1.0, "crop_mode": "squash"}
    assert Preprocess().timm_config() == {}


@pytest.mark.parametrize("size", [None, 0, -1])
@pytest.mark.parametrize("how", ["crop", "squash"])
def test_a_size_has_at_least_one_pixel(how, size):
    with pytest.raises(ValueError, match=f"{how} needs a size"):
        Preprocess(how=how, size=size)
    assert Preprocess(how=how, size=1)(random_picture(3, 4)).shape == (1, 1, 3)


def test_pictures_of_any_mode_become_colors():
    grey = np.random.default_rng(0).integers(0, 256, (5, 4), np.uint8)
    deep = Image.fromarray(grey.astype(np.uint16) * 256 + 255)
    assert deep.mode == "I;16"
    for picture in (Image.fromarray(grey), deep, Image.fromarray(grey.astype(np.int32) * 256)):
        assert np.array_equal(Preprocess()(picture), np.stack([grey] * 3, -1)), picture.mode
    color = random_picture(4, 5)
    assert np.array_equal(Preprocess()(color.convert("RGBA")), np.asarray(color))


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


class Items(torch.utils.data.Dataset):
    """A list as torch's map-style Dataset."""

    def __init__(self, *items, classes=None):
        self.items = items
        if classes is not None:
            self.classes = classes

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]


def test_items_of_a_dataset_may_be_tensors_or_arrays():
    color = np.array(random_picture(4, 5))
    grey = color[..., 0].copy()
    data = Items((color, 3), [color, 1], (torch.from_numpy(color).permute(2, 0, 1), np.int64(2)), (grey, 0))
    images = images_from(data)
    x, y = images.take(torch.tensor([3, 0, 2, 1, 0]))
    assert torch.equal(y, torch.tensor([0, 3, 2, 1, 3]))
    assert np.array_equal(x[0].numpy(), np.stack([grey] * 3))
    for number in range(1, 5):
        assert np.array_equal(x[number].permute(1, 2, 0).numpy(), color)
    assert (len(images), images.title, images.num_classes, images.class_names) == (4, "Items", None, None)
    named = images_from(Items((color, 0), classes=["a", "b", "c"]))
    assert (named.num_classes, named.class_names) == (3, ["a", "b", "c"])


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([(torch.zeros(3, 4, 4), 0), (torch.zeros(3, 4, 4), 0, 0)], r"pairs \(image, label\)"),
        ([(torch.zeros(3, 4, 4), 0), torch.zeros(2, 3, 4, 4)], r"pairs \(image, label\)"),
        ([(torch.zeros(3, 4, 4), 0), (torch.zeros(3, 4, 5), 0)], "differ in size"),
        ([(torch.zeros(4, 3, 4), 0)], r"shape \(3, H, W\), not \(4, 3, 4\)"),
        ([(torch.zeros(3, 4), 0)], r"shape \(3, H, W\), not \(3, 4\)"),
        ([(torch.zeros(3, 3, 4, 4), 0)], r"shape \(3, H, W\)"),
        ([(torch.zeros(3, 4, 4, device="meta"), 0)], "meta device"),
    ],
)
def test_items_of_another_kind_are_refused(items, message):
    with pytest.raises(UserError, match=message):
        images_from(Items(*items)).take(torch.arange(len(items)))


def test_a_pair_keeps_its_type_and_counts_its_images():
    for dtype in (torch.uint8, torch.float16, torch.float64):
        x = torch.ones(2, 3, 4, 5, dtype=dtype)
        for pair in ((x, torch.tensor([1, 0], dtype=torch.int32)), [x, np.array([1, 0], np.uint8)], (x, [1, 0])):
            images = images_from(pair)
            taken, labels = images.take(torch.arange(2))
            assert (taken.dtype, labels.dtype, labels.tolist()) == (dtype, torch.int64, [1, 0])
            assert images.title == "2 images given as tensors"


class Foreign:
    """Random access to images of somebody else's."""

    def __init__(self, *missing):
        for name, value in (("take", lambda indices: (indices, indices)), ("num_classes", None)):
            if name not in missing:
                setattr(self, name, value)


def test_foreign_images_have_both_what_is_needed():
    whole = Foreign()
    assert images_from(whole) is whole
    for missing in ("take", "num_classes"):
        with pytest.raises(UserError, match="not Foreign"):
            images_from(Foreign(missing))


def test_a_name_tells_the_kind_of_data(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pictures(tmp_path / "p")
    pictures(tmp_path / "digits"), pictures(tmp_path / "q.npz")
    kinds = {"digits": Digits, "p": Folder, "x.npz": Arrays, "x.npy": Arrays, "q.npz": Arrays, "x.tgz": Shards}
    for text, kind in {**kinds, "x.tar": Shards, "x-*.tar.gz": Shards, "x-{0..3}.tar": Shards}.items():
        assert type(dataset_by_name(text)) is kind, text
    for text in ("nothing", "nothing.tar/x", "x.npz.zip"):
        with pytest.raises(UserError, match="neither a folder nor"):
            dataset_by_name(text)
    assert len(images_from(tmp_path / "p")) == len(images_from({"name": "folder", "path": "p"})) == 2
    assert len(images_from(Folder(path=tmp_path / "p"))) == 2


def test_loaded_data_are_chosen_by_the_seed_out_of_a_split():
    for split in ("test", "train"):
        images = Digits().open(split)
        for count, seed in ((20, 0), (20, 4), (None, 0)):
            x, y = rv.load_data("digits", count, split=split, seed=seed)
            expected, labels = images.take(choose_images(images, count, seed)[0])
            assert torch.equal(x, expected.float() / 255)
            assert torch.equal(y, labels)
    assert torch.equal(rv.load_data("digits", 20)[0], rv.load_data("digits", 20, split="test", seed=0)[0])


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
        ((torch.rand(5, 4, 3, 3), torch.arange(5)), "shape"),
        ((torch.rand(5, 3, 4), torch.arange(5)), "shape"),
        ((torch.rand(5, 3, 4, 4), torch.arange(5) > 2), "class indices, not torch.bool"),
        ((torch.rand(5, 3, 4, 4), torch.arange(5)[:, None]), "5 images need"),
        ((torch.rand(5, 3, 4, 4, device="meta"), torch.arange(5)), "meta device"),
        ((torch.rand(5, 3, 4, 4), torch.arange(5, device="meta")), "meta device"),
        ((torch.zeros(5, 3, 4, 4, dtype=torch.bool), torch.arange(5)), "uint8 or floats"),
        ((torch.rand(5, 3, 4, 4), torch.arange(5), 3), "not tuple"),
        ([torch.rand(5, 3, 4, 4)], "not list"),
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

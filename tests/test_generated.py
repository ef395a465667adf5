"""Generated images: the layouts they come in, on disk however many they are, and mixed with real ones that fit."""

import os
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from robustvit.core.errors import UserError
from robustvit.core.streams import seeded_places
from robustvit.data import Digits, Generated, GeneratedImages, Mixture
from robustvit.data.arrays import InMemory
from robustvit.data.generated import _check_known

MANY = 50_000_000
HEADER = 128


def arrays(count=30, size=8):
    rng = np.random.default_rng(1)
    return rng.integers(0, 256, (count, size, size, 3), np.uint8), rng.integers(0, 10, count)


def layout(name: str, folder: Path) -> GeneratedImages:
    images, labels = arrays()
    if name == "npz":
        np.savez(folder / "x.npz", image=images, label=labels)
        return GeneratedImages(path=folder / "x.npz")
    if name == "compressed npz":
        np.savez_compressed(folder / "x.npz", image=images, label=labels)
        return GeneratedImages(path=folder / "x.npz")
    if name == "bin":
        images.tofile(folder / "sorted_images.bin")
        np.save(folder / "sorted_labels.npy", labels)
        return GeneratedImages(path=folder / "sorted_images.bin", size=8)
    for number, rows in enumerate((slice(0, 4), slice(4, 5), slice(5, 30))):
        np.save(folder / f"images-{number:03d}.npy", images[rows])
        np.save(folder / f"labels-{number:03d}.npy", labels[rows])
    return GeneratedImages(path=folder)


@pytest.mark.parametrize("name", ["npz", "compressed npz", "bin", "shards"])
def test_every_layout_gives_the_same_images(name, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ROBUSTVIT_CACHE", str(tmp_path / "cache"))
    images, labels = arrays()
    data = layout(name, tmp_path)
    opened = data.open("train")
    rows = torch.tensor([29, 0, 4, 5, 3, 29, 17])
    x, y = opened.take(rows)
    assert len(opened) == 30
    assert np.array_equal(x.permute(0, 2, 3, 1).numpy(), images[rows.numpy()])
    assert y.tolist() == labels[rows.numpy()].tolist()
    assert all(isinstance(part.images, np.memmap) for part in opened.parts)
    message = capsys.readouterr().err
    data.open("train")
    assert ("unpacking" in message) == (name == "compressed npz")
    assert capsys.readouterr().err == "", "converted once"


def test_an_interrupted_conversion_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setenv("ROBUSTVIT_CACHE", str(tmp_path / "cache"))
    data = layout("compressed npz", tmp_path)
    content = data.path.read_bytes()
    middle = len(content) // 3
    data.path.write_bytes(content[:middle] + bytes(64) + content[middle + 64 :])
    with pytest.raises(UserError, match="not a whole .npz"):
        data.open("train")
    assert not list((tmp_path / "cache").glob("*.npy"))


def sparse(path: Path, parts: dict[int, bytes], size: int) -> None:
    """A file of this size that holds the parts, and holes elsewhere."""
    with path.open("wb") as file:
        for offset, content in parts.items():
            file.seek(offset)
            file.write(content)
        file.truncate(size)
    if path.stat().st_blocks * 512 > 10_000_000:
        pytest.skip("this disk has no sparse files")


def npy_header(shape: tuple[int, ...], kind: str) -> bytes:
    text = str({"descr": kind, "fortran_order": False, "shape": shape}).encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", HEADER - 10) + text.ljust(HEADER - 11) + b"\n"


def sparse_npz(path: Path, image: dict[int, bytes]) -> None:
    """As np.savez writes it: two stored members, the first beyond 4 GB and hence with zip64's fields."""
    parts: dict[int, bytes] = {}
    directory = b""
    offset = 0
    for name, shape, kind, content in (
        (b"image.npy", (MANY, 32, 32, 3), "|u1", image),
        (b"label.npy", (MANY,), "|i1", {}),
    ):
        size = HEADER + int(np.prod(shape))
        wide = struct.pack("<HHQQ", 1, 16, size, size)
        common = struct.pack("<HHHHHIIIHH", 45, 0, 0, 0, 0, 0, 0xFFFFFFFF, 0xFFFFFFFF, len(name), len(wide))
        parts[offset] = b"PK\x03\x04" + common + name + wide + npy_header(shape, kind)
        begin = offset + 30 + len(name) + len(wide) + HEADER
        parts.update({begin + place: data for place, data in content.items()})
        placed = struct.pack("<HHQQQ", 1, 24, size, size, offset)
        head = struct.pack("<HHHHHHIIIHHHHHII", 45, 45, 0, 0, 0, 0, 0, 0xFFFFFFFF, 0xFFFFFFFF,
                           len(name), len(placed), 0, 0, 0, 0, 0xFFFFFFFF)  # fmt: skip
        directory += b"PK\x01\x02" + head + name + placed
        offset = begin + size - HEADER
    end = struct.pack("<QHHIIQQQQ", 44, 45, 45, 0, 0, 2, 2, len(directory), offset)
    locator = struct.pack("<IQI", 0, offset + len(directory), 1)
    last = struct.pack("<HHHHIIH", 0xFFFF, 0xFFFF, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    parts[offset] = directory + b"PK\x06\x06" + end + b"PK\x06\x07" + locator + b"PK\x05\x06" + last
    sparse(path, parts, offset + len(parts[offset]))


def resident_megabytes() -> float:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux's account of memory")
@pytest.mark.parametrize("name", ["npz", "bin"])
def test_fifty_million_images_need_no_memory(name, tmp_path):
    each = 32 * 32 * 3
    mixture_rows = seeded_places(torch.arange(10), MANY, 0, "main", "generated", 0)
    shown = {int(row) * each: bytes([7]) * each for row in (0, MANY - 1, *mixture_rows)}
    path = tmp_path / f"images.{name}"
    if name == "npz":
        sparse_npz(path, shown)
    else:
        sparse(path, shown, MANY * each)
        sparse(tmp_path / "labels.npy", {0: npy_header((MANY,), "|i1")}, HEADER + MANY)
    assert path.stat().st_size > 153_600_000_000 - 1
    before = resident_megabytes()
    generated = Generated(data=GeneratedImages(path=path), ratio=0.5)
    real = InMemory(torch.zeros(50, 3, 32, 32, dtype=torch.uint8), torch.zeros(50, dtype=torch.long), "real", 10)
    images = generated.open(real, 10)
    assert len(images) == MANY
    assert images.take(torch.tensor([0, 1, MANY - 1]))[0].flatten(1).float().mean(1).tolist() == [7, 0, 7]
    mixture = Mixture(real, 20, 10, generated=images, ratio=0.5)
    assert mixture.take(0)[0].flatten(1).float().mean(1).tolist() == [0] * 10 + [7] * 10
    for step in range(1, 40):
        mixture.take(step)
    assert resident_megabytes() - before < 60


def digits_shards(folder: Path, images=None, labels=None):
    folder.mkdir()
    made, classes = arrays(12)
    np.save(folder / "images-0.npy", made if images is None else images)
    np.save(folder / "labels-0.npy", classes if labels is None else labels)
    return GeneratedImages(path=folder)


def test_generated_images_that_do_not_fit_are_refused(tmp_path):
    real = Digits().open("train")
    cases = [
        (digits_shards(tmp_path / "a", images=np.zeros((12, 9, 8, 3), np.uint8)),
         r"have the shape \(3, 9, 8\), those of digits/train \(3, 8, 8\)"),
        (digits_shards(tmp_path / "b", labels=np.arange(12)), "label 10 is outside the model's 10 classes"),
        (digits_shards(tmp_path / "c", labels=np.arange(12) - 5), "label -5 is outside"),
        (GeneratedImages(path=digits_shards(tmp_path / "d").path, num_classes=100), "has 100 classes, the model 10"),
        (digits_shards(tmp_path / "e", labels=np.arange(11)), "12 images need as many whole labels"),
        (digits_shards(tmp_path / "f", images=np.zeros((0, 8, 8, 3), np.uint8), labels=np.zeros(0, int)),
         "holds no images"),
        (GeneratedImages(path=tmp_path / "absent"), "no file or folder"),
        (GeneratedImages(path=tmp_path), "expected images-\\*.npy"),
    ]  # fmt: skip
    for data, message in cases:
        with pytest.raises(UserError, match=message):
            Generated(data=data).open(real, 10)
    images, _ = arrays(12)
    images.tofile(tmp_path / "x.bin")
    with pytest.raises(UserError, match="not whole images of 3072; set data.size"):
        GeneratedImages(path=tmp_path / "x.bin", labels=tmp_path / "a" / "labels-0.npy").open("train")
    with pytest.raises(UserError, match=r"no file '.*x.npy' with the labels"):
        GeneratedImages(path=tmp_path / "x.bin", size=8).open("train")
    np.save(tmp_path / "d" / "images-1.npy", np.zeros((3, 4, 4, 3), np.uint8))
    np.save(tmp_path / "d" / "labels-1.npy", np.zeros(3, int))
    with pytest.raises(UserError, match="different sizes"):
        GeneratedImages(path=tmp_path / "d").open("train")
    for ratio in (-0.1, 1.5):
        with pytest.raises(ValueError, match="equal to"):
            Generated(data=GeneratedImages(path=tmp_path), ratio=ratio)


def test_a_wrong_label_among_many_is_reported_before_or_when_it_comes(tmp_path):
    images, labels = np.zeros((5000, 8, 8, 3), np.uint8), np.zeros(5000, int)
    labels[1234] = 50
    data = digits_shards(tmp_path / "x", images, labels)
    with pytest.raises(UserError, match="label 50 is outside"):
        Generated(data=data).open(Digits().open("train"), 10)
    mixture = Mixture(Digits().open("train"), 1000, 10, generated=data.open("train"), ratio=1)
    with pytest.raises(UserError, match="label 50 is outside"):
        for step in range(5):
            mixture.take(step)


@pytest.mark.parametrize(("count", "classes", "reported"), [(3000, 2, True), (3000, 3, False), (2999, 2, False)])
def test_classes_without_a_generated_image_are_reported_if_there_are_enough_of_them(count, classes, reported, capsys):
    """By 3000 images of 3 classes, each has a thousand on average."""
    images = InMemory(torch.zeros(count, 3, 1, 1), torch.arange(count) % classes, "made", 3, None)
    _check_known(images, 3, "here")
    assert ("made has images of 2 classes, the model has 3" in capsys.readouterr().err) == reported

"""Tar shards: read once, kept, and read anew when they change."""

import contextlib
import gzip
import io
import json
import multiprocessing
import os
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch

from robustvit.core.errors import UserError
from robustvit.data import Shards, images_from, shards as module
from robustvit.data.arrays import ArrayImages
from robustvit.data.base import data_fingerprint
from robustvit.data.pictures import Pictures, check_index, decode, index_checksum, index_shards
from shards import encoded, random_images, write_shard, write_tar

IMAGES, LABELS = random_images(12), [3, 1, 0, 2, 1, 1, 0, 3, 2, 2, 0, 1]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ROBUSTVIT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def write_both(folder: Path, suffix: str = ".tar") -> str:
    write_shard(folder / f"train-0{suffix}", IMAGES[:7], LABELS[:7])
    write_shard(folder / f"train-1{suffix}", IMAGES[7:], LABELS[7:], first=7)
    return str(folder / "train-*.tar*")


def pixels(images, rows):
    x, y = images.take(torch.tensor(rows))
    assert x.dtype == torch.uint8
    return x.permute(0, 2, 3, 1).numpy(), y.tolist()


@pytest.mark.parametrize(("suffix", "small"), [(".tar", True), (".tar", False), (".tar.gz", False)])
@pytest.mark.parametrize("threads", [1, 3])
def test_every_way_of_keeping_shards_gives_the_same_images(tmp_path, monkeypatch, suffix, small, threads):
    if not small:
        monkeypatch.setattr(module, "SMALL", 0)
    torch.set_num_threads(threads)
    try:
        images = images_from(write_both(tmp_path, suffix))
        rows = [11, 0, 7, 6, 3, 3]
        x, y = pixels(images, rows)
    finally:
        torch.set_num_threads(1)
    assert np.array_equal(x, IMAGES[rows])
    assert y == [LABELS[row] for row in rows]
    assert isinstance(images, ArrayImages if small or suffix == ".tar.gz" else Pictures)
    assert (len(images), images.num_classes) == (12, None)


def test_the_second_time_nothing_is_walked_or_decoded(tmp_path, monkeypatch):
    pattern = write_both(tmp_path, ".tar.gz")
    first = images_from(pattern)

    def fail(*_):
        raise AssertionError("made again")

    monkeypatch.setattr(module, "index_shards", fail)
    monkeypatch.setattr(module, "_write_pixels", fail)
    again = images_from(pattern)
    assert isinstance(again.images, np.memmap)
    assert data_fingerprint(again, torch.arange(12)) == data_fingerprint(first, torch.arange(12))
    with pytest.raises(AssertionError, match="made again"):
        Shards(path=pattern, preprocess={"how": "squash", "size": 4}).open("test")


@pytest.mark.parametrize("suffix", [".tar", ".tar.gz"])
@pytest.mark.parametrize("small", [True, False])
def test_changed_shards_are_read_anew(tmp_path, monkeypatch, suffix, small):
    monkeypatch.setattr(module, "SMALL", 1 << 30 if small else 0)
    pattern = write_both(tmp_path, suffix)
    seen = {data_fingerprint(images_from(pattern), torch.arange(5))}
    other = random_images(5, seed=9)
    last = write_shard(tmp_path / f"train-1{suffix}", other, LABELS[7:], first=7)
    assert np.array_equal(pixels(images_from(pattern), [8])[0], other[[1]])
    before = last.stat()
    data = bytearray(last.read_bytes())
    write_shard(last, other, [0] * 5, first=7)
    if last.stat().st_size == before.st_size:
        assert bytes(data) != last.read_bytes()
    os.utime(last, ns=(before.st_atime_ns, before.st_mtime_ns + 1))  # even if the clock didn't move
    assert pixels(images_from(pattern), [8])[1] == [0]
    write_shard(tmp_path / f"train-2{suffix}", other, LABELS[7:], first=12)
    assert len(images_from(pattern)) == 17
    seen.add(data_fingerprint(images_from(pattern), torch.arange(5)))
    assert len(seen) == 2, "another number of images is other data"


def _open_together(pattern, begin, answers):
    begin.wait()
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        images = images_from(pattern)
    answers.put((data_fingerprint(images, torch.arange(len(images))), said.getvalue()))


def test_processes_that_start_together_make_it_once_and_agree(tmp_path):
    for number in range(4):
        write_shard(tmp_path / f"train-{number}.tar.gz", random_images(250, (32, 32), number), [number] * 250)
    context = multiprocessing.get_context("fork")
    begin, answers = context.Event(), context.Queue()
    pattern = str(tmp_path / "train-*.tar.gz")
    processes = [context.Process(target=_open_together, args=(pattern, begin, answers)) for _ in range(4)]
    for process in processes:
        process.start()
    begin.set()
    for process in processes:
        process.join()
    ended = [answers.get() for _ in processes]
    alone = images_from(pattern)
    assert {fingerprint for fingerprint, _ in ended} == {data_fingerprint(alone, torch.arange(1000))}
    assert sum("decoding 1000 images once" in said for _, said in ended) == 1


def test_what_fails_half_way_leaves_no_cache_behind(tmp_path, cache):
    members = {"a.png": encoded(IMAGES[0]), "a.cls": b"0", "b.png": encoded(IMAGES[1])[:-30], "b.cls": b"1"}
    write_tar(tmp_path / "x.tar", members)
    for _ in range(2):
        with pytest.raises(UserError, match="'b': not a readable picture"):
            images_from(str(tmp_path / "x.tar"))
    assert not [path for path in cache.iterdir() if "pixels" in path.name and not path.name.endswith(".lock")]


def test_names_may_have_folders_dots_and_capitals(tmp_path):
    members = {
        "./n01/a.JPEG": encoded(IMAGES[0], "jpeg"),
        "./n01/a.cls": b"1\n",
        "./n01/a.json": b"{}",
        "n02/b.cls": b" 0 ",
        "n02/b.png": encoded(IMAGES[1]),
        "README.txt": b"words",
    }
    write_tar(tmp_path / "x.tgz", members)
    images = images_from(str(tmp_path / "x.tgz"))
    assert images.names.tolist() == [b"n01/a", b"n02/b"]
    assert images.take(torch.tensor([0, 1]))[1].tolist() == [1, 0]


def test_classes_next_to_the_shards_give_their_number(tmp_path):
    pattern = write_both(tmp_path)
    (tmp_path / "classes.json").write_text(json.dumps(["ant", "bee", "cow", "dog"]))
    assert images_from(pattern).num_classes == 4
    assert Shards(path=pattern, num_classes=7).open("test").num_classes == 7
    (tmp_path / "classes.json").write_text('{"ant": 0}')
    with pytest.raises(UserError, match="a list of the classes' names"):
        images_from(pattern)


PICTURE = encoded(IMAGES[0])


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"a.png": PICTURE}, "'a' has no label 'a.cls'"),
        ({"a.png": PICTURE, "a.cls": b"cat"}, "'a.cls' must hold a class number, not b'cat'"),
        ({"a.png": PICTURE, "a.jpg": PICTURE, "a.cls": b"0"}, "two pictures called 'a'"),
        ({"a.png": PICTURE, "a.cls": b"0", "b.png": encoded(IMAGES[0][:4]), "b.cls": b"0"}, "differ in size"),
        ({"a.png": b"noise", "a.cls": b"0"}, "x.tar: 'a': not a readable picture"),
        ({"a.txt": b"words"}, "holds no images"),
        ({}, "holds no images"),
    ],
)
def test_archives_of_another_kind_are_refused(tmp_path, members, message):
    write_tar(tmp_path / "x.tar", members)
    with pytest.raises(UserError, match=message) as caught:
        images_from(str(tmp_path / "x.tar"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["x.tar", "x.tar.gz"])
@pytest.mark.parametrize("kept", [0.2, 0.6, 0.9])
def test_torn_archives_are_refused(tmp_path, name, kept):
    path = write_shard(tmp_path / name, random_images(12, (60, 60)), LABELS)
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * kept)])
    with pytest.raises(UserError, match="not a whole tar archive"):
        images_from(str(path))
    path.write_bytes(b"noise" * 999)
    with pytest.raises(UserError, match="not a whole tar archive"):
        images_from(str(path))


def test_archives_cut_between_two_members_are_refused(tmp_path):
    """What is left would be a shorter archive without a mark at its end."""
    path = write_shard(tmp_path / "x.tar", random_images(12, (6, 6)), LABELS)
    with tarfile.open(path) as archive:
        ends = [member.offset for member in archive][2::2]
    whole = path.read_bytes()
    for end in ends:
        path.write_bytes(whole[:end])
        with pytest.raises(UserError, match="the mark at its end is missing"):
            images_from(str(path))
    zipped = tmp_path / "x.tar.gz"
    for lost in (1, 8, 20):
        zipped.write_bytes(gzip.compress(whole)[:-lost])
        with pytest.raises(UserError, match="not a whole tar archive"):
            images_from(str(zipped))


def test_a_changed_index_is_noticed(tmp_path, cache):
    path = str(write_shard(tmp_path / "x.tar", random_images(12, (6, 6)), LABELS))
    images_from(path)
    (kept,) = cache.glob("*-index.npy")
    content = kept.read_bytes()
    index = np.load(kept)
    index["label"][3] += 1
    np.save(kept, index)
    kept.write_bytes(kept.read_bytes() + content[-4:])
    with pytest.raises(UserError, match="the checksum differs.*remove it"):
        images_from(path)
    kept.unlink()
    images_from(path)


def test_no_shards_and_a_cache_that_cannot_be_written_are_reported(tmp_path, monkeypatch):
    with pytest.raises(UserError, match="no tar shards"):
        images_from(str(tmp_path / "nothing-*.tar"))
    (tmp_path / "afile").write_text("")
    monkeypatch.setenv("ROBUSTVIT_CACHE", str(tmp_path / "afile" / "below"))
    with pytest.raises(UserError, match="ROBUSTVIT_CACHE names another"):
        images_from(write_both(tmp_path))


def test_the_split_stands_in_the_pattern(tmp_path):
    write_shard(tmp_path / "train-0.tar", IMAGES[:8], LABELS[:8])
    write_shard(tmp_path / "test-0.tar", IMAGES[8:], LABELS[8:])
    data = Shards(path=str(tmp_path / "{split}-*.tar"))
    assert data.has_splits
    assert (len(data.open("train")), len(data.open("test"))) == (8, 4)
    assert not Shards(path=str(tmp_path / "train-*.tar")).has_splits


def test_an_index_of_other_archives_is_refused(tmp_path):
    write_both(tmp_path)
    shards = [tmp_path / "train-0.tar", tmp_path / "train-1.tar"]
    index = index_shards(shards, "two")
    assert index["name"].tolist() == [f"{number:06d}".encode() for number in range(12)]
    assert index["label"].tolist() == LABELS
    assert index["shard"].tolist() == [0] * 7 + [1] * 5
    for row in index:
        data = shards[row["shard"]].read_bytes()[row["offset"] : row["offset"] + row["size"]]
        assert data == encoded(IMAGES[int(row["name"])])
    path = tmp_path / "index.npy"

    def checked(index, shards):
        path.write_bytes(b"..." + index_checksum(index))
        return check_index(index, shards, path)

    assert checked(index, shards) is index
    assert len(checked(index[:0], shards)) == 0
    lengths = [shard.stat().st_size for shard in shards]

    def with_field(name, row, value):
        other = index.copy()
        other[name][row] = value
        return other

    for name in ("offset", "size"):
        checked(with_field(name, 7, lengths[1]), shards)
        with pytest.raises(UserError, match="an index of other tar archives"):
            checked(with_field(name, 7, lengths[1] + 1), shards)
        zipped = [shards[0], write_shard(tmp_path / "z.tar.gz", IMAGES[7:], LABELS[7:])]
        checked(with_field(name, 7, 1 << 40), zipped)  # whose length says nothing
    for wrong in (
        with_field("shard", 3, 2),
        *(with_field(name, 3, -1) for name in ("label", "shard", "offset", "size")),
    ):
        with pytest.raises(UserError, match="an index of other tar archives"):
            checked(wrong, shards)
    kinds = index.dtype.descr
    for wrong in (
        index[None],
        index[["name", "label", "shard", "offset"]],
        index.astype([*kinds[:4], ("size", "<f8")]),
        index.astype([kinds[0], ("label", "<u8"), *kinds[2:]]),
        np.arange(12),
    ):
        with pytest.raises(UserError, match="not an index of tar archives but"):
            checked(wrong, shards)


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
@pytest.mark.parametrize("count", [0, 1, 2, 5, 40])
def test_pictures_are_decoded_in_order_by_any_number_of_threads(count, threads):
    images = random_images(max(count, 1))
    torch.set_num_threads(threads)
    try:
        made = decode(count, lambda row: encoded(images[row]), str, lambda picture, row: np.asarray(picture) // 2 + row)
        if count > 1:
            with pytest.raises(UserError, match=f"^{count - 1}: not a readable picture"):
                decode(count, lambda row: encoded(images[row])[: 9 if row == count - 1 else None], str, lambda p, _: p)
    finally:
        torch.set_num_threads(1)
    assert len(made) == count
    assert all(np.array_equal(array, images[row] // 2 + row) for row, array in enumerate(made))

"""Classes and images by a list: one rule for every kind of data."""

import json

import numpy as np
import pytest
import torch

import robustvit as rv
from robustvit.core.component import build, registered, to_dict
from robustvit.core.errors import UserError
from robustvit.data import Arrays, Digits, Folder, Selection, Shards, Subset, images_from, shards as shards_module
from robustvit.data.arrays import InMemory
from robustvit.data.base import choose_images, data_fingerprint, hold_out, known_labels
from robustvit.data.select import selected
from shards import encoded, random_images, write_shard
from test_data import pictures

SYNSETS = ("n01440764", "n01443537", "n02085620", "n03000684")


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("ROBUSTVIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def kinds(place):
    """The same 12 images of 4 classes in every way that data can lie."""
    images, labels = random_images(12), sorted(list(range(4)) * 3)
    for number, (image, label) in enumerate(zip(images, labels, strict=True)):
        file = place / "folder" / SYNSETS[label] / f"p{number:02d}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(encoded(image))
    np.savez(place / "x.npz", image=images, label=labels)
    write_shard(place / "shards" / "x.tar", images, labels)
    return images, {
        "folder": Folder(path=place / "folder"),
        "arrays": Arrays(path=str(place / "x.npz")),
        "shards": Shards(path=str(place / "shards" / "x.tar")),
    }


def with_select(data, **select):
    return build("data", {**to_dict(data), "select": select})


def test_all_data_can_be_selected_from():
    for name, made in registered("data").items():
        assert made.__dataclass_fields__["select"].default is None, name


def test_every_kind_of_data_obeys_the_same_selection(place):
    images, data = kinds(place)
    for one in data.values():
        chosen = with_select(one, classes=[2, 0], images=[11, 7, 0, 8, 4]).open("test")
        x, y = chosen.take(torch.arange(len(chosen)))
        assert np.array_equal(x.permute(0, 2, 3, 1).numpy(), images[[7, 0, 8]]), "in the list's order"
        assert y.tolist() == [0, 1, 0], "numbered in the order of the classes wanted"
        assert y.tolist() == known_labels(chosen, torch.arange(3)).tolist()
        assert chosen.num_classes == 2
        assert chosen.title.endswith(", 5 images of a list, 2 classes of a list")
        assert chosen.take(torch.tensor([2, 2, 0]))[1].tolist() == [0, 0, 0]


def test_files_with_synsets_and_robustbench_ids(place):
    _, data = kinds(place)
    (place / "classes.txt").write_text(f"# two of four\n{SYNSETS[3]} chest\n\n{SYNSETS[1]}\n")
    for entry in (f"{SYNSETS[1]}/p04.png", f"val/{SYNSETS[1]}/p04.JPEG", f"./{SYNSETS[1]}/p04", "p04"):
        (place / "ids.txt").write_text(f"{SYNSETS[0]}/p00.png\n{SYNSETS[3]}/p10.png\n{entry}\n")
        chosen = with_select(data["folder"], classes="classes.txt", images="ids.txt").open("test")
        assert chosen.indices.tolist() == [10, 4]
        assert chosen.relabeled.tolist() == [0, 1]
        assert chosen.title.endswith("folder, 3 images of ids.txt, 2 classes of classes.txt")
    assert with_select(data["shards"], images=["000007", "000002.png"]).open("test").indices.tolist() == [7, 2]
    assert with_select(data["shards"], images=[7, 2]).open("test").indices.tolist() == [7, 2]


def test_a_name_counts_before_a_number(place):
    pictures(place / "p", sizes=((8, 8),) * 2, classes=("10", "7", "9"))
    assert Folder(path=place / "p", select={"classes": ["7"]}).open("test").indices.tolist() == [2, 3]
    assert Folder(path=place / "p", select={"classes": [7, 10]}).open("test").relabeled.tolist() == [1, 1, 0, 0]
    assert Folder(path=place / "p", select={"classes": [0]}).open("test").indices.tolist() == [0, 1]
    assert Folder(path=place / "p", select={"images": [0, 1]}).open("test").indices.tolist() == [0, 1], (
        "'0' names three pictures, so that it can only be meant as a number"
    )


def test_named_classes_of_shards(place):
    kinds(place)
    names = [f"{synset}_{word}" for synset, word in zip(SYNSETS, ("tench", "goldfish", "dog", "chain"), strict=True)]
    (place / "shards" / "classes.json").write_text(str(names).replace("'", '"'))
    for wanted in (["dog", "tench"], [SYNSETS[2], SYNSETS[0]], [names[2], names[0]], [2, 0], ["2", "0"]):
        chosen = Shards(path="shards/x.tar", select=Selection(classes=wanted)).open("test")
        assert chosen.indices.tolist() == [0, 1, 2, 6, 7, 8]
        assert chosen.relabeled.tolist() == [1, 1, 1, 0, 0, 0]


class Labeled(InMemory):
    """Labels alone, with what is known of the classes."""

    def __init__(self, labels, num_classes=None, class_names=None, names=None):
        images = torch.arange(len(labels)).view(-1, 1, 1, 1).expand(-1, 3, 2, 2)
        super().__init__(images, torch.tensor(labels), "labeled", num_classes, class_names, names)


@pytest.mark.parametrize(
    ("known", "total"), [({}, 4), ({"num_classes": 6}, 6), ({"class_names": list("abcde")}, 5), ({"num_classes": 2}, 4)]
)
def test_numbers_of_classes_run_to_the_last_that_is_known_or_seen(known, total):
    images = Labeled([3, 0, 3, 1], **known)
    chosen = selected(images, Selection(classes=(total - 1, 3) if total > 4 else (3,)))
    assert chosen.indices.tolist() == [0, 2]
    assert chosen.relabeled.tolist() == ([1, 1] if total > 4 else [0, 0])
    assert chosen.num_classes == (2 if total > 4 else 1)
    names = known.get("class_names")
    assert chosen.class_names == (None if names is None else (names[total - 1], names[3]))
    with pytest.raises(UserError, match=f"no number {total}; they run from 0 to {total - 1}"):
        selected(images, Selection(classes=(total,)))


def test_without_a_wish_the_images_are_what_they_were():
    images = Labeled([0, 1])
    assert selected(images, None) is images
    assert selected(images, Selection()) is images
    assert selected(images, Selection(images=(1,))).title == "labeled, 1 images of a list"
    assert selected(images, Selection(classes=(1,))).title == "labeled, 1 classes of a list"


def test_images_by_name_or_by_their_last_part():
    names = np.array([b"a/x.png", b"a/y.JPEG", b"b/x.jpg", b"b/z.v2", b"c/7"])
    images = Labeled([0, 0, 1, 1, 0], names=names)
    for wanted, rows in (
        (["a/x", "b/x.png"], [0, 2]),
        (["train/b/z.v2", "./val/a/y.png", "validation/a/x"], [3, 1, 0]),
        (["y", "z.v2"], [1, 3]),
        (["7", "b/x"], [4, 2]),
        (["4", "0"], [4, 0]),
    ):
        assert selected(images, Selection(images=tuple(wanted))).indices.tolist() == rows
    for wrong in (["z"], ["b/z.png"], ["y", "\u0664"], ["y", "-1"], ["other/a/x"]):
        with pytest.raises(UserError, match="has no"):
            selected(images, Selection(images=tuple(wrong)))
    with pytest.raises(UserError, match="has 2 called 'x': which one"):
        selected(images, Selection(images=("x",)))


def test_the_hold_out_and_a_random_subset_stay_inside_the_selection(place):
    _, data = kinds(place)
    chosen = with_select(data["folder"], classes=[3, 1]).open("train")
    kept, held = hold_out(chosen, 2, seed=0)
    both = torch.cat([kept.take(torch.arange(4))[1], held.take(torch.arange(2))[1]])
    assert sorted(both.tolist()) == [0, 0, 0, 1, 1, 1]
    assert held.num_classes == 2
    indices, rule = choose_images(chosen, 4, 1)
    assert rule == "4 of 6 at random, seed 1"
    assert max(indices) < 6


def test_the_fingerprint_sees_pictures_and_new_numbers_without_decoding(place, monkeypatch):
    _, data = kinds(place)

    def fail(*_):
        raise AssertionError("decoded")

    monkeypatch.setattr("robustvit.data.pictures.decode", fail)
    monkeypatch.setattr(shards_module, "SMALL", 0)
    fingerprints = [
        data_fingerprint(with_select(data["folder"], **select).open("test"), torch.arange(3))
        for select in ({"classes": [0, 1]}, {"classes": [1, 0]}, {"images": [0, 1, 2]}, {"images": [0, 2, 1]})
    ]
    assert len(set(fingerprints)) == 4
    held = hold_out(with_select(data["folder"], classes=[0, 1]).open("test"), 3, 0)[1]
    assert len(data_fingerprint(held, torch.arange(3))) == 64


@pytest.mark.parametrize(
    ("select", "message"),
    [
        ({"classes": "nothing.txt"}, "data.select.classes: no file 'nothing.txt'"),
        ({"images": "empty.txt"}, "empty.txt is empty"),
        ({"classes": "bytes.txt"}, "not a text file"),
        ({"classes": ["ct"]}, "has no 'ct'; did you mean 'cat'?"),
        ({"classes": ["cat", "cat"]}, "'cat' is wanted 2 times"),
        ({"classes": ["cat", "0"]}, "has no '0'"),
        ({"classes": [5]}, "no number 5; they run from 0 to 1"),
        ({"images": ["cat/0.png", "cat/9.png"]}, "has no 'cat/9.png'"),
        ({"images": ["cat/0.png", "1"]}, "has 2 called '1': which one?"),
        ({"images": ["cat/0.png", "cat/0"]}, "wanted 2 times"),
        ({"images": [99]}, "no number 99"),
        ({"images": [0], "classes": ["dog"]}, "holds no images"),
    ],
)
def test_lists_that_do_not_fit_are_refused(place, select, message):
    pictures(place / "p", sizes=((8, 8),) * 2)
    (place / "empty.txt").write_text("\n# nothing\n")
    (place / "bytes.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match=message.replace("?", r"\?")) as caught:
        Folder(path=place / "p", select=select).open("test")
    assert "\n" not in str(caught.value)


def test_an_evaluation_of_a_selection_says_so(trained, place):
    (place / "ids.txt").write_text("\n".join(map(str, range(0, 300, 3))))
    data = Digits(select={"images": "ids.txt"})
    whole = rv.evaluate(trained, "digits", suite="clean", threat=rv.LpBall("inf", 0.1), quiet=True)
    some = rv.evaluate(trained, data, suite="clean", threat=rv.LpBall("inf", 0.1), run=place / "run", quiet=True)
    assert np.array_equal(some.is_correct, whole.is_correct[0:300:3])
    stored = json.loads(next(place.glob("run/eval/*/result.json")).read_text())
    assert stored["provenance"]["data"] == "digits/test, 100 images of ids.txt"
    fewer = rv.evaluate(trained, data, suite="clean", threat=rv.LpBall("inf", 0.1), images=20, quiet=True)
    assert fewer.provenance.images_rule == "20 of 100 at random, seed 0"
    with pytest.raises(UserError, match="10 classes, the labels of digits/test, 2 classes of a list are of 2"):
        rv.evaluate(
            trained, {"name": "digits", "select": {"classes": [3, 5]}}, suite="clean", threat=rv.LpBall("inf", 0.1)
        )
    assert isinstance(images_from(data), Subset)

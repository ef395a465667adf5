"""The photographs inside the package: the ones they are said to be, found everywhere, and checked when read."""

import json
import shutil
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from torch import nn
from typer.testing import CliRunner

import robustvit as rv
from robustvit.cli.main import app
from robustvit.core.errors import UserError
from robustvit.data import Cifar10Sample, sample
from robustvit.data.base import class_names


@pytest.fixture
def copy(tmp_path, monkeypatch):
    """The picture and its description, to be damaged."""
    for suffix in (".png", ".yaml"):
        shutil.copy(sample.PICTURE.with_suffix(suffix), tmp_path)
    monkeypatch.setattr(sample, "PICTURE", tmp_path / sample.PICTURE.name)
    return sample.PICTURE


def test_ten_photographs_of_each_class():
    x, y = rv.load_data("cifar10_sample")
    assert (x.shape, x.dtype) == ((100, 3, 32, 32), torch.float32)
    assert y.tolist() == [label for label in range(10) for _ in range(10)]
    assert 0.1 < x.std() < 0.4, "photographs, not noise"
    near, far = (x[..., 1:] - x[..., :-1]).abs().mean(), (x[..., 16:] - x[..., :16]).abs().mean()
    assert near < far / 2, "neighboring pixels are alike, so nothing was cut wrongly"
    images = Cifar10Sample().open("test")
    assert (images.title, images.num_classes) == ("cifar10_sample/test", 10)
    assert class_names(images)[3] == "cat"


def test_they_are_the_first_ten_of_each_class_of_the_test_set(exact_cifar10):
    images, labels = exact_cifar10("test")
    about = yaml.safe_load(sample.PICTURE.with_suffix(".yaml").read_text())
    first = [[place for place, label in enumerate(labels) if label == number][:10] for number in range(10)]
    assert list(about["classes"].values()) == first
    pixels, _ = Cifar10Sample().open("test").take(torch.arange(100))
    assert np.array_equal(pixels.permute(0, 2, 3, 1).numpy(), images[np.concatenate(first)])


def test_parts_are_chosen_by_class_and_by_place_in_the_test_set():
    wanted = {"classes": ["truck", "cat"], "images": ["cat/0008", "ship/0001", "0011"]}
    images = Cifar10Sample(select=wanted).open("test")
    whole = Cifar10Sample().open("test")
    x, y = images.take(torch.arange(2))
    assert y.tolist() == [1, 0]
    assert torch.equal(x, whole.take(torch.tensor([31, 90]))[0])


def test_a_result_on_them_has_names_and_the_fingerprint_of_the_pixels(tmp_path):
    model = nn.Sequential(nn.Flatten(), nn.Linear(3072, 10))
    options = {"suite": "fgsm", "threat": rv.LpBall("inf", "8/255"), "quiet": True, "checks": False}
    result = rv.evaluate(model, "cifar10_sample", run=tmp_path, **options)
    assert (result.num_images, result.provenance.data) == (100, "cifar10_sample/test")
    assert result.provenance.class_names[:2] == ("airplane", "automobile")
    as_pair = rv.evaluate(model, Cifar10Sample().open("test").take(torch.arange(100)), run=tmp_path / "pair", **options)
    assert result.provenance.data_sha256 == as_pair.provenance.data_sha256


def test_the_command_line_takes_and_lists_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = ["--random-weights", "--num-classes", "10", "--suite", "clean", "--eps", "0", "--images", "8"]
    ran = CliRunner().invoke(app, ["evaluate", "test_resnet", "--data", "cifar10_sample", *options])
    assert ran.exit_code == 0, ran.output
    (written,) = tmp_path.rglob("result.json")
    assert json.loads(written.read_text())["provenance"]["data"] == "cifar10_sample/test"
    assert "cifar10_sample  " in CliRunner().invoke(app, ["list", "data"]).output


def test_there_is_no_training_split():
    with pytest.raises(UserError, match="cifar10_sample: has test images only, none for the train split"):
        rv.load_data("cifar10_sample", split="train")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("pixel", r"cifar10_sample\.png: not the pixels that cifar10_sample\.yaml has the checksum of; install"),
        ("cut", r"cifar10_sample\.png: not a readable picture"),
        ("size", r"cifar10_sample\.png: a picture of \(320, 288, 3\), where \(320, 320, 3\) is expected; install"),
        ("gone", r"cifar10_sample\.png: can't be read"),
        ("places", r"cifar10_sample\.yaml: not a description of its images \(classes\.cat: .*; install"),
        ("checksum", r"cifar10_sample\.yaml: not a description of its images \(sha256: .*; install"),
    ],
)
def test_damaged_files_are_refused(copy, damage, message):
    about = copy.with_suffix(".yaml")
    with Image.open(copy) as picture:
        pixels = np.array(picture)
    if damage == "pixel":
        pixels[100, 100, 1] ^= 1
        Image.fromarray(pixels).save(copy)
    elif damage == "size":
        Image.fromarray(pixels[:, :288]).save(copy)
    elif damage == "cut":
        copy.write_bytes(copy.read_bytes()[:50_000])
    elif damage == "gone":
        copy.unlink()
    elif damage == "places":
        about.write_text(about.read_text().replace("[0, 8, ", "[0, "))
    else:
        about.write_text(about.read_text().replace("sha256:", "sha:"))
    with pytest.raises(UserError, match=message):
        Cifar10Sample().open("test")


def test_the_wheel_holds_every_file_of_the_package_that_is_no_module():
    root = Path(rv.__file__).parent
    settings = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
    patterns = settings["tool"]["setuptools"]["package-data"]["robustvit"]
    others = {path for path in root.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")}
    assert not others - {path for pattern in patterns for path in root.glob(pattern)}

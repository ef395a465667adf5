"""The evaluator of corruptions: generated or from files, resumed, compared, and named so that nothing is mixed up."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import stats

import robustvit as rv
from robustvit.cli.table import print_results
from robustvit.core.checksum import with_checksum
from robustvit.core.errors import UserError
from robustvit.core.journal import read_rows
from robustvit.core.result_files import read_result
from robustvit.core.streams import sample_streams
from robustvit.data.base import Subset
from robustvit.data.corruptions import EXTRA, GROUPS, SEVERITIES, STANDARD, corrupted, jpeg
from robustvit.data.folder import Folder
from robustvit.data.open import images_from
from robustvit.evaluation import Corruptions, evaluate, evaluator_from, open_subject
from robustvit.evaluation.corruption_baseline import trained_corruptions
from robustvit.evaluation.corruption_measures import ALEXNET_ERRORS, CorruptionAnswers
from robustvit.evaluation.corruptions import Corrupt, Read
from robustvit.evaluation.ledger import Answers
from robustvit.models import save_model

FEW = {"which": ["gaussian_noise", "glass_blur", "frost"], "severities": [1, 5]}
NAMES = [f"{name}/{severity}" for name in FEW["which"] for severity in (1, 5)]


def asked(model, data, images=None, run=None, **settings):
    options = {key: settings.pop(key) for key in ("batch_size", "processes", "seed", "checks") if key in settings}
    suite = Corruptions(**{**FEW, **settings})
    return evaluate(model, data, suite=suite, quiet=True, images=images, run=run, **options)


def accuracies(result):
    return {one.name: one.accuracy for one in result.conditions}


@pytest.fixture(scope="module")
def some(digits):
    """60 digits."""
    return (digits[0][:60] * 255).round().to(torch.uint8), digits[1][:60]


def test_each_condition_is_its_corruption(trained, some):
    x, y = some
    result = asked(trained, some)
    with torch.no_grad():
        assert result.clean_accuracy == float((trained(x / 255).argmax(1) == y).double().mean())
        for one in Corruptions(**FEW).corruptions:
            for severity in (1, 5):
                name = f"{one.name}/{severity}"
                streams = sample_streams(0, range(60)).child("condition", name)
                images = corrupted(x, one, severity, "cifar", streams)
                right = trained(images / 255).argmax(1) == y
                assert accuracies(result)[name] == float(right.double().mean())
    assert list(accuracies(result)) == ["clean", *NAMES]
    assert {one.groups for one in result.conditions[1:]} == {("noise",), ("blur",), ("weather",)}


def test_neither_batches_nor_processes_nor_kills_change_it(trained, some, tmp_path, in_turn):
    whole = asked(trained, some, run=tmp_path / "whole", batch_size=20)
    assert accuracies(asked(trained, some, batch_size=17)) == accuracies(whole)
    assert accuracies(asked(trained, some, run=tmp_path / "shared", processes=2)) == accuracies(whole)
    ledger = Path(whole.folder) / "ledger-0.jsonl"
    lines = ledger.read_bytes().splitlines(keepends=True)
    folder = tmp_path / "cut" / "eval" / ledger.parent.name
    folder.mkdir(parents=True)
    (folder / "ledger-0.jsonl").write_bytes(b"".join(lines[:7]) + lines[7][:20])
    resumed = asked(trained, some, run=tmp_path / "cut", batch_size=20)
    assert resumed.measures == whole.measures
    assert len(read_rows(folder / "ledger-0.jsonl")) == len(lines), "nothing is computed twice"
    assert read_result(Path(whole.folder)).to_dict() == whole.to_dict()


def test_a_condition_is_the_same_whatever_else_is_asked(trained, some):
    alone = asked(trained, some, which="glass_blur", severities=5)
    assert accuracies(alone)["glass_blur/5"] == accuracies(asked(trained, some))["glass_blur/5"]
    few, whole = asked(trained, some, images=25), asked(trained, some)
    kept = np.isin(whole.indices, few.indices)
    assert np.array_equal(whole.is_robust[kept], few.is_robust)


def test_another_question_has_another_folder(trained, some, tmp_path, monkeypatch):
    variants = (
        {},
        {"severities": [1]},
        {"jpeg": 85},
        {"jpeg": 60},
        {"parameters": "imagenet", "size": 16},
        {"size": 9},
    )
    folders = [asked(trained, some, run=tmp_path, checks=False, **settings).folder for settings in variants]
    other = (some[0].flip(3), some[1])
    folders.append(asked(trained, other, run=tmp_path, checks=False).folder)
    monkeypatch.setattr("robustvit.evaluation.corruptions.GENERATOR", 2)
    folders.append(asked(trained, some, run=tmp_path, checks=False).folder)
    assert len(set(folders)) == len(folders)
    monkeypatch.undo()
    assert asked(trained, some, run=tmp_path, checks=False).folder == folders[0]


def test_auto_means_the_authors_choices(trained, some):
    def resolved(side, **settings):
        data = (torch.zeros(2, 3, side, side), torch.tensor([0, 1]))
        return Corruptions(**settings).resolved(open_subject(trained, data))

    assert resolved(32) == ("cifar", None)
    assert resolved(33) == ("imagenet", 85)
    assert resolved(224, parameters="cifar") == ("cifar", None)
    assert resolved(384, size=32) == ("cifar", None)
    assert resolved(32, parameters="imagenet", jpeg=None) == ("imagenet", None)
    assert resolved(32, jpeg=70) == ("cifar", 70)
    assert asked(trained, some).provenance.settings["parameters"] == "cifar"


def test_images_are_corrupted_at_a_size_then_compressed_then_resized(some):
    x, (fog,) = some[0][:5], Corruptions(which="fog").corruptions
    streams = sample_streams(0, range(5))
    change = Corrupt(fog, 3, "imagenet", quality=85, size=16, textures="")
    made = change(x / 255, streams)
    enlarged = [Image.fromarray(one.permute(1, 2, 0).numpy()).resize((16, 16), Image.Resampling.BICUBIC) for one in x]
    pixels = torch.stack([torch.from_numpy(np.array(one)) for one in enlarged]).permute(0, 3, 1, 2).contiguous()
    expected = jpeg(corrupted(pixels, fog, 3, "imagenet", streams), 85)
    assert (made.shape, made.dtype) == (x.shape, torch.uint8)
    shrunk = [
        Image.fromarray(one.permute(1, 2, 0).numpy()).resize((8, 8), Image.Resampling.BICUBIC) for one in expected
    ]
    assert torch.equal(made[2], torch.from_numpy(np.array(shrunk[2])).permute(2, 0, 1))


def test_measures_are_the_means_that_they_say(trained, some):
    result = asked(trained, some, which="all", severities=[2, 4])
    found = accuracies(result)
    values = {one.name: one.value for one in result.measures}
    for name in STANDARD + EXTRA:
        assert values[f"type_{name}_accuracy"] == pytest.approx((found[f"{name}/2"] + found[f"{name}/4"]) / 2)
    for severity in (2, 4):
        every = [value for name, value in found.items() if name.endswith(f"/{severity}")]
        assert values[f"severity_{severity}_accuracy"] == pytest.approx(np.mean(every))
    for group, names in GROUPS.items():
        every = [found[f"{name}/{severity}"] for name in names for severity in (2, 4)]
        assert values[f"group_{group}_accuracy"] == pytest.approx(np.mean(every))
    mean = np.mean([value for name, value in found.items() if name != "clean"])
    assert values["worst_type_accuracy"] == min(values[f"type_{name}_accuracy"] for name in STANDARD + EXTRA)
    assert values["drop_from_clean_accuracy"] == pytest.approx(found["clean"] - mean)
    assert (result.headline.name, result.headline.value) == ("mean_accuracy", pytest.approx(mean))
    assert [one.name for one in result.measures if "mce" in one.name] == []
    assert "38" not in repr(result), "of many measures, the first and the headline"
    assert repr(result).count("%") == 2


def answers_of(wrong, images):
    """`wrong[type]` errors, spread over the five severities."""
    made = {"clean": Answers(np.arange(images), np.zeros(images, int), np.ones(images, bool))}
    for name, count in wrong.items():
        correct = np.ones(5 * images, bool)
        correct[:count] = False
        for severity, part in zip(SEVERITIES, correct.reshape(images, 5).T, strict=True):
            made[f"{name}/{severity}"] = Answers(np.arange(images), np.zeros(images, int), part)
    return CorruptionAnswers(dict.fromkeys(wrong, "g"), SEVERITIES, made)


def test_alexnets_own_errors_give_an_mce_of_100():
    wrong = {name: round(error * 250_000) for name, error in ALEXNET_ERRORS.items()}  # of 5 x 50,000 images
    found = answers_of(wrong, 50_000)
    assert set(ALEXNET_ERRORS) == set(STANDARD)
    for is_published, name in ((True, "mce"), (False, "mce_own_images")):
        measure = found.mce(is_published, (224, 224))
        assert (measure.name, measure.value) == (name, pytest.approx(100, abs=1e-9))
        assert measure.description.startswith("mCE:" if is_published else "mCE, own images:")
    assert [one.name for one in found.means()] == ["mean_75_accuracy"]


def test_the_interval_of_mce_comes_from_the_images():
    wrong = {name: 40 + 10 * place for place, name in enumerate(STANDARD)}
    found = answers_of(wrong, 100)
    measure = found.mce(True, (224, 224))
    ratios = 100 * np.mean([found.errors[name] / error for name, error in ALEXNET_ERRORS.items()], axis=0)
    assert measure.value == pytest.approx(100 * np.mean([wrong[n] / 500 / e for n, e in ALEXNET_ERRORS.items()]))
    half = stats.t.ppf(0.975, 99) * ratios.std(ddof=1) / 10
    assert measure.interval == pytest.approx((ratios.mean() - half, ratios.mean() + half))
    assert measure.description.endswith("on 100 of 50,000 images")


def test_answers_that_are_all_alike_have_intervals_as_wide_as_their_accuracy():
    """Six images that are all wrong leave room for others that are right: in the accuracy, mCE and the drop alike."""
    found = answers_of(dict.fromkeys(STANDARD, 30), 6)
    (mean,) = found.means()
    mce, drop = found.mce(True, (224, 224)), found.measures()[-1]
    assert mean.interval == pytest.approx((0, 0.3903), abs=1e-4)
    assert mce.interval == pytest.approx((mce.value * (1 - mean.interval[1]), mce.value))
    assert (drop.value, drop.interval) == (1.0, pytest.approx((1 - 2 * mean.interval[1], 1)))


def test_mce_needs_1000_classes_all_types_and_all_severities():
    thousand = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(363, 1000))
    data = (torch.rand(2, 3, 11, 11), torch.arange(2))
    full = evaluate(thousand, data, suite=Corruptions(parameters="imagenet"), quiet=True, checks=False)
    assert full.measure("mce_own_images").description.endswith("of 224x224 px; here on 2 images of 11x11 px")
    cifar = evaluate(thousand, data, suite=Corruptions(parameters="cifar"), quiet=True, checks=False)
    assert not any("mce" in one.name for one in cifar.measures), "AlexNet's errors are for ImageNet's parameters"
    assert not full.has("mce"), "the images are our own"
    assert full.headline.name == "mean_75_accuracy"
    fewer = evaluate(
        thousand, data, suite=Corruptions(severities=[1, 2], parameters="imagenet"), quiet=True, checks=False
    )
    assert not any("mce" in one.name for one in fewer.measures)
    fewer = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(363, 999))
    result = evaluate(fewer, data, suite=Corruptions(parameters="imagenet"), quiet=True, checks=False)
    assert not any("mce" in one.name for one in result.measures)


def test_means_are_over_the_types_that_their_names_say():
    wrong = {name: 10 * place for place, name in enumerate(STANDARD + EXTRA)}
    values = {one.name: one.value for one in answers_of(wrong, 100).means()}
    for name, types in (("mean_75", STANDARD), ("mean_extra_20", EXTRA), ("mean_95", STANDARD + EXTRA)):
        assert values[f"{name}_accuracy"] == pytest.approx(1 - np.mean([wrong[one] for one in types]) / 500)
    assert list(values)[-1] == "mean_95_accuracy"


def generated(data, **settings):
    """(conditions, images, 3, H, W): what the evaluator makes of all images."""
    images = images_from(data)
    subject = open_subject(torch.nn.Flatten(), data)
    x, _ = images.take(torch.arange(len(images)))
    changes = Corruptions(**settings)._generate(subject)
    made = {}
    for (name, severity), change in changes.items():
        streams = sample_streams(0, range(len(images))).child("condition", f"{name}/{severity}")
        made[name, severity] = change(x / 255, streams)
    return made


def write_arrays(folder, data, **settings):
    folder.mkdir(exist_ok=True)
    made = generated(data, severities=SEVERITIES, **settings)
    for name in settings["which"]:
        pixels = torch.cat([made[name, severity] for severity in SEVERITIES]).permute(0, 2, 3, 1)
        np.save(folder / f"{name}.npy", pixels.numpy())
    np.save(folder / "labels.npy", np.tile(data[1].numpy(), 5))


def same_numbers(one, other):
    assert accuracies(one) == accuracies(other)
    assert one.measures == other.measures
    assert all(np.array_equal(a, b) for a, b in zip(one.outcomes.arrays().values(), other.outcomes.arrays().values()))  # noqa: B905


def test_files_of_generated_images_give_what_generated_images_give(trained, some, tmp_path):
    write_arrays(tmp_path / "c", some, which=FEW["which"])
    same_numbers(asked(trained, some), asked(trained, some, source=tmp_path / "c"))
    few = asked(trained, some, source=tmp_path / "c", images=21)
    same_numbers(few, asked(trained, some, images=21))
    rows = torch.tensor([50, 3, 17, 8])
    part = Subset(images_from(some), rows, "a selection")  # found by its places in the whole
    change = Corruptions(source=tmp_path / "c", **FEW)._read(open_subject(trained, part))["frost", 5]
    pixels = torch.from_numpy(np.load(tmp_path / "c" / "frost.npy")[240:][rows]).permute(0, 3, 1, 2)
    assert torch.equal(change(some[0][rows] / 255, sample_streams(0, range(4))), pixels)


@pytest.fixture
def pictures(some, tmp_path):
    """A folder of PNG files, and the corrupted ones below a folder of each group."""
    x, y = some[0][:24], some[1][:24]
    order = y.argsort(stable=True)
    names = [f"n{int(y[row]):08d}/ILSVRC2012_val_{int(row):08d}.png" for row in order]
    made = generated((x[order], y[order]), **FEW)
    sets = {"val": x[order]} | {f"c/some/{name}/{severity}": images for (name, severity), images in made.items()}
    for folder, images in sets.items():
        for name, image in zip(names, images, strict=True):
            path = tmp_path / folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image.permute(1, 2, 0).numpy()).save(path)
    return tmp_path


def test_folders_of_pictures_are_found_by_name(trained, pictures, tmp_path):
    data = Folder(path=pictures / "val")
    source = pictures / "c"
    whole = asked(trained, data, source=source, run=tmp_path / "run")
    same_numbers(asked(trained, data), whole)
    names = [path.relative_to(pictures / "val").as_posix() for path in (pictures / "val").rglob("*.png")]
    some = Folder(path=pictures / "val", select={"images": sorted(names)[::-3]})
    by_name = asked(trained, some, source=source, checks=False)
    x, y = images_from(some).take(torch.arange(8))
    changed = Corruptions(source=source, **FEW)._read(open_subject(trained, some))["glass_blur", 5]
    with torch.no_grad():
        right = trained(changed(x / 255, sample_streams(0, range(8))) / 255).argmax(1) == y
    assert accuracies(by_name)["glass_blur/5"] == float(right.double().mean())


def test_files_of_one_name_in_several_classes_are_told_apart(trained, pictures):
    for path in sorted(pictures.rglob("*.png")):
        path.rename(path.with_name(f"{len(list(path.parent.glob('[0-9].png')))}.png"))
    data = Folder(path=pictures / "val")
    names = [path.relative_to(pictures / "val").as_posix() for path in sorted((pictures / "val").rglob("*.png"))]
    assert len({Path(name).name for name in names}) < len(names)
    change = Corruptions(source=pictures / "c", **FEW)._read(open_subject(trained, data))["frost", 1]
    made = change(images_from(data).take(torch.arange(24))[0] / 255, sample_streams(0, range(24)))
    for name, image in zip(names, made, strict=True):
        stored = np.array(Image.open(pictures / "c/some/frost/1" / name))
        assert np.array_equal(image.permute(1, 2, 0).numpy(), stored)


def test_files_of_another_class_are_refused_where_both_name_it(trained, pictures):
    data, source = Folder(path=pictures / "val"), pictures / "c"
    moved = sorted(path.name for path in (source / "some/frost/1").iterdir())[0]
    for folder in source.glob("*/*/*"):
        (folder / moved).rename(folder / "n09999999")
    with pytest.raises(UserError, match=f"'.*png' as class n09999999, {data.path} as {moved}; evaluate on the data"):
        asked(trained, data, source=source)
    before = "n09999999"
    for name in (f"{moved}_tench", "tench"):  # the same synset; words, which can't be compared
        for folder in source.glob("*/*/*"):
            (folder / before).rename(folder / name)
        before = name
        same_numbers(asked(trained, data), asked(trained, data, source=source))


def test_no_pixel_of_published_files_is_read_for_the_identity(trained, some, pictures, tmp_path, monkeypatch):
    write_arrays(tmp_path / "arrays", some, which=FEW["which"])
    kinds = {"arrays": (some, "_ArrayPart"), "c": (Folder(path=pictures / "val"), "_FolderPart")}
    for folder, (data, part) in kinds.items():
        subject = open_subject(trained, data)
        evaluation = Corruptions(source=tmp_path / folder, **FEW).begin(subject)
        monkeypatch.setattr(f"robustvit.data.corruptions.published.{part}.take", None)
        before = evaluation.identity
        touched = next(
            path for path in sorted((tmp_path / folder).rglob("*")) if "glass" in str(path) and path.is_file()
        )
        touched.write_bytes(touched.read_bytes())
        assert evaluation.identity != before, "another time of a file is another question"
        json.dumps(before)


def test_a_file_that_was_replaced_is_read_anew(trained, some, tmp_path):
    data = (some[0][:4], some[1][:4])
    np.save(tmp_path / "labels.npy", np.tile(data[1].numpy(), 5))
    for value in (7, 200):
        np.save(tmp_path / "new.npy", np.full((20, 8, 8, 3), value, np.uint8))
        os.replace(tmp_path / "new.npy", tmp_path / "fog.npy")
        os.utime(tmp_path / "fog.npy", (value, value))
        change = Corruptions(source=tmp_path, which="fog")._read(open_subject(trained, data))["fog", 2]
        assert (change(data[0] / 255, sample_streams(0, range(4))) == value).all()


def test_published_images_of_another_size_are_resized(trained, some, tmp_path):
    x = torch.nn.functional.interpolate(some[0].float(), 16).to(torch.uint8)
    write_arrays(tmp_path / "c", (x, some[1]), which=["fog"])
    change = Corruptions(source=tmp_path / "c", which="fog")._read(open_subject(trained, some))["fog", 2]
    assert isinstance(change, Read)
    assert change(some[0][:3] / 255, sample_streams(0, range(3))).shape == (3, 3, 8, 8)


def test_an_incomplete_set_is_refused_in_a_sentence(trained, some, tmp_path, pictures):
    source = tmp_path / "arrays"
    write_arrays(source, some, which=FEW["which"])

    def refused(message, data=some, **settings):
        with pytest.raises(UserError, match=message):
            asked(trained, data, **{"source": source, **settings})

    refused(r"lacks fog.npy, shot_noise.npy; `which` and `severities`", which=["fog", "glass_blur", "shot_noise"])
    refused(
        "has 60 images of each corruption and severity, 59 images given as tensors has 59", (some[0][1:], some[1][1:])
    )
    refused(
        "says that image 3 is of class .*; they are other images",
        (some[0], torch.where(torch.arange(60) == 3, 9 - some[1], some[1])),
    )
    refused("source: no folder 'nowhere'", source="nowhere")
    folder = Folder(path=pictures / "val")
    refused(r"lacks glass_blur/2; `which`", folder, source=pictures / "c", severities=[1, 2], which="glass_blur")
    victim = sorted((pictures / "c/some/frost/5").rglob("*.png"))[-1]
    victim.unlink()
    refused(f"source: '.*{victim.name}' is missing, which other", folder, source=pictures / "c", run=tmp_path / "r")
    first = sorted((pictures / "c/some/gaussian_noise/1").rglob("*.png"))[-1]
    first.unlink()
    refused(f"has no corrupted version of '{first.stem}'", folder, source=pictures / "c")
    np.save(source / "frost.npy", np.load(source / "frost.npy")[:-1])
    refused("frost.npy: has 299 images, labels.npy has 300 labels")
    np.save(source / "frost.npy", np.zeros((300, 8, 8)))
    refused(r"images must be uint8 \(N, H, W, 3\), not float64")
    np.save(source / "frost.npy", np.zeros((300, 0, 8, 3), np.uint8))
    refused(r"images must be uint8 \(N, H, W, 3\), not uint8 \(300, 0, 8, 3\)")
    np.save(source / "labels.npy", np.tile(some[1].numpy(), 5)[:-1])
    refused("labels.npy: whole labels are expected, 5 times those of the set")
    np.save(source / "labels.npy", np.tile(some[1].numpy(), 5)[:, None])
    refused("labels.npy: whole labels are expected, 5 times those of the set")
    np.save(source / "labels.npy", np.arange(300) % 7)
    refused("the labels of the five severities differ")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"which": ["fogg"]}, "no corruption 'fogg'; did you mean 'fog'"),
        ({"which": "standart"}, "did you mean 'standard'"),
        ({"which": []}, "standard, extra, all, or a list of corruptions"),
        ({"which": ["fog", "fog"]}, "a corruption is there twice"),
        ({"severities": [0]}, r"different whole numbers from 1 to 5, not \[0\]"),
        ({"severities": [1, 6]}, "different whole numbers from 1 to 5"),
        ({"severities": [2, 2]}, "different whole numbers from 1 to 5"),
        ({"severities": []}, "different whole numbers from 1 to 5"),
        ({"severities": [True]}, "different whole numbers from 1 to 5"),
        ({"jpeg": 0}, "jpeg"),
        ({"jpeg": 101}, "jpeg"),
        ({"parameters": "cifar10"}, "parameters"),
        ({"source": "somewhere", "jpeg": 85}, "jpeg: published files are read as they are"),
        ({"source": "somewhere", "size": 224}, "size: published files are read as they are"),
        ({"size": 0}, "size"),
        ({"size": 4097}, "size: input should be less than or equal to 4096"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(UserError, match=message):
        evaluator_from({"name": "corruptions", **settings}, None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("corruptions:jpeg=0", "corruptions.jpeg: input should be greater than or equal to 1, not '0'"),
        ("corruptions:jpeg=many", "corruptions.jpeg: input should be 'auto' or a whole number, not 'many'"),
        ("corruptions:source=[]", "corruptions.source: input should be 'generated' or a path, not []"),
    ],
)
def test_one_of_several_types_is_one_sentence(text, message):
    with pytest.raises(UserError) as caught:
        evaluator_from(text, None)
    assert str(caught.value) == message


def test_settings_can_be_given_after_a_colon():
    made = evaluator_from("corruptions:which=fog,severities=3,jpeg=null,size=64", None)
    assert made == Corruptions(which=["fog"], severities=[3], jpeg=None, size=64)
    assert evaluator_from("corruptions:jpeg=85,source=generated", None) == Corruptions(jpeg=85)
    listed = evaluator_from("{name: corruptions, which: [fog, snow], severities: [3, 1]}", None)
    assert (listed.which, listed.severities) == (("fog", "snow"), (1, 3))


def test_images_that_are_too_small_are_refused_before_any_work(trained):
    data = (torch.rand(4, 3, 7, 7), torch.arange(4))
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(147, 10))
    with pytest.raises(UserError, match="images of 7x7 pixels are too small for the parameters of cifar, which need 8"):
        asked(model, data)
    with pytest.raises(UserError, match="images of 8x8 pixels are too small for the parameters of imagenet"):
        asked(trained, (torch.rand(4, 3, 8, 8), torch.arange(4)), parameters="imagenet")


def test_relative_to_itself_a_model_has_an_error_of_100(trained, some, tmp_path):
    settings = {"which": ["frost", "glass_blur"]}
    own = asked(trained, some, run=tmp_path, **settings)
    before = (Path(own.folder) / "ledger-0.jsonl").read_bytes()
    result = asked(trained, some, run=tmp_path, baseline=own.folder, **settings)
    measure = result.measure("ce_relative_to_baseline")
    assert (measure.value, measure.interval) == (pytest.approx(100), pytest.approx((100, 100)))
    assert (result.folder, (Path(own.folder) / "ledger-0.jsonl").read_bytes()) == (own.folder, before)
    stored = read_result(Path(own.folder))
    assert stored.measure("ce_relative_to_baseline") == measure
    assert stored.provenance.settings["baseline"] == own.folder
    assert result.headline.name == "mean_accuracy"
    without = asked(trained, some, run=tmp_path, **settings)
    assert without.measures == result.measures, "what was measured stays"
    assert read_result(Path(own.folder)).provenance.settings["baseline"] == own.folder


def test_files_from_before_measures_had_a_kind_are_read(trained, some, tmp_path):
    result = asked(trained, some, run=tmp_path)
    assert {one.kind for one in result.measures} == {"accuracy", "difference"}
    folder = Path(result.folder)
    content = json.loads((folder / "result.json").read_text())
    del content["checksum"]
    for one in content["measures"]:
        del one["kind"]
    (folder / "result.json").write_text(json.dumps(with_checksum(content, result.outcomes.arrays())))
    assert read_result(folder).measures == result.measures


def test_a_baseline_that_lost_answers_is_refused(trained, some, tmp_path):
    own = asked(trained, some, run=tmp_path)
    (Path(own.folder) / "ledger-0.jsonl").unlink()
    with pytest.raises(UserError, match="its ledger lacks images under 'gaussian_noise/1'; evaluate that model again"):
        asked(trained, some, baseline=own.folder)


def test_published_files_count_as_imagenet_c_only_at_its_size(some, tmp_path):
    """Six pictures of 16 px are no ImageNet-C, whatever the classes of the model."""
    thousand = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 1000))
    for side, has_mce in ((16, False), (224, True)):
        folder = tmp_path / str(side)
        folder.mkdir()
        np.save(folder / "labels.npy", np.tile(some[1][:2].numpy(), 5))
        for name in STANDARD:
            np.save(folder / f"{name}.npy", np.zeros((10, side, side, 3), np.uint8))
        data = (some[0][:2], some[1][:2])
        result = evaluate(thousand, data, suite=Corruptions(source=folder), quiet=True, checks=False)
        assert result.has("mce") == has_mce
        assert result.notes == (f"published files of {folder}: 2 of 50,000 images, {side}x{side} px",)


def test_errors_are_divided_type_by_type(trained, some, tmp_path, vit):
    other = asked(vit, some, run=tmp_path / "other", checks=False)
    result = asked(trained, some, baseline=other.folder)
    ratios = [
        sum(1 - accuracies(result)[f"{name}/{s}"] for s in (1, 5))
        / sum(1 - accuracies(other)[f"{name}/{s}"] for s in (1, 5))
        for name in FEW["which"]
    ]
    assert result.measure("ce_relative_to_baseline").value == pytest.approx(100 * np.mean(ratios))


def test_a_baseline_of_something_else_is_refused(trained, some, tmp_path):
    own = asked(trained, some, run=tmp_path / "own")
    few = asked(trained, some, run=tmp_path / "few", which=["frost"])
    compressed = asked(trained, some, run=tmp_path / "jpeg", jpeg=85)
    others = asked(trained, (some[0].flip(0), some[1].flip(0)), run=tmp_path / "others")
    plain = evaluate(trained, some, suite="accuracy", run=tmp_path / "plain", quiet=True)
    perfect = asked(trained, some, run=tmp_path / "perfect", which=["brightness"], severities=[1], images=20)
    for folder, message, more in (
        (few.folder, "has no condition 'gaussian_noise/1'", {}),
        (compressed.folder, r"has other settings, jpeg: 85 \(here None\)", {}),
        (others.folder, "is of other images", {}),
        (plain.folder, "is a result of accuracy, not of corruptions", {}),
        (tmp_path, "no result.json in", {}),
        (perfect.folder, "has no error under 'brightness'", {"which": ["brightness"], "severities": [1], "images": 20}),
    ):
        with pytest.raises(UserError, match=message):
            asked(trained, some, baseline=folder, **more)
    assert own.has("mean_accuracy")


RECIPE = {
    "phases": [
        {"augmentation": {"name": "pad_crop"}},
        {"augmentation": {"name": "canonical", "base": {"name": "corruptions", "which": ["fog", "frost"]}}},
    ],
    "validation": {"suite": {"name": "corruptions", "which": ["snow"]}},
}


def test_a_result_on_corruptions_of_the_training_says_so(vit, some, tmp_path):
    save_model(vit, tmp_path / "w.safetensors", recipe=RECIPE)
    result = evaluate(tmp_path / "w.safetensors", some, suite=Corruptions(**FEW), quiet=True)
    (warning,) = [one for one in result.warnings if one.name == "trained-with-corruptions"]
    assert "trained with 1 of these types: frost" in str(warning)
    assert result.is_doubtful
    other = evaluate(tmp_path / "w.safetensors", some, suite=Corruptions(which="spatter"), quiet=True)
    assert not any(one.name == "trained-with-corruptions" for one in other.warnings)


def test_the_corruptions_of_a_recipe_are_found_wherever_they_are():
    assert trained_corruptions(RECIPE) == {"fog", "frost"}
    assert trained_corruptions({"augmentation": "corruptions"}) == set(EXTRA)
    assert trained_corruptions({"augmentation": {"name": "corruptions", "which": "all"}}) == set(STANDARD + EXTRA)
    assert trained_corruptions({"augmentation": {"name": "light"}}) == set()
    assert trained_corruptions({}) == set()


def test_a_run_that_trained_with_corruptions_carries_the_warning(tmp_path):
    changes = ["epochs=1", "augmentation={name: corruptions, which: [frost], probability: 1}", "data.name=digits"]
    run = rv.train("digits/standard", overrides=changes, run=tmp_path / "run", quiet=True)
    result = evaluate(run.path, suite=Corruptions(which=["frost", "fog"], severities=[1]), images=40, quiet=True)
    assert any(one.name == "trained-with-corruptions" for one in result.warnings)


def test_the_terminal_has_a_table_of_types_and_severities(trained, some, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    result = asked(trained, some, severities=[1, 3, 5])
    print_results([result])
    lines = capsys.readouterr().out.splitlines()
    assert ["corruption", "/", "severity", "1", "3", "5", "mean"] in [line.split() for line in lines]
    frost = [accuracies(result)[f"frost/{severity}"] for severity in (1, 3, 5)]
    expected = ["frost", *(f"{100 * value:.1f}" for value in (*frost, np.mean(frost)))]
    assert expected in [line.replace("%", "").split() for line in lines]
    assert not any(line.startswith(("frost/", "type_", "severity_")) for line in lines)
    assert any(line.startswith("mean_accuracy:") for line in lines)
    assert any(
        "images generated by robustvit (generator 1, 8x8 px, parameters of cifar, no JPEG, drawn frost)" in line
        for line in lines
    )
    assert "frost: " in result.summary()
    assert "frost/1" not in result.summary()


def test_figures_are_a_heat_map_and_a_line_a_group(trained, some):
    result = asked(trained, some)
    heatmap, chart = result.figures
    assert (heatmap.rows, heatmap.columns) == ((*FEW["which"], "mean"), ("1", "5", "mean"))
    blurred = [accuracies(result)[f"glass_blur/{severity}"] for severity in (1, 5)]
    assert heatmap.values[1] == pytest.approx((*blurred, np.mean(blurred)))
    assert heatmap.values[-1][-1] == pytest.approx(result.headline.value)
    assert [line.name for line in chart.lines] == ["noise", "blur", "weather"]
    assert chart.lines[2].ys == (accuracies(result)["frost/1"], accuracies(result)["frost/5"])
    assert all(low <= y <= high for line in chart.lines for y, (low, high) in zip(line.ys, line.intervals, strict=True))
    single = asked(trained, some, severities=[3])
    assert len(single.figures) == 1

"""Selection of generated images: the best of each class, exactly; near-duplicates; positions as arrays."""

import json
import os

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import robustvit as rv
from robustvit.cli.main import app
from robustvit.core.errors import UserError
from robustvit.data import Digits, GeneratedImages, Selection, as_pixels
from robustvit.data.arrays import InMemory
from robustvit.data.scores import best_of_each_class
from robustvit.models import save_model
from robustvit.synthesis.score import Nearest

COPIES = 4


@pytest.fixture
def folder(tmp_path):
    """Two shards of noisy digits; the first images are almost copies of training images."""
    rng = np.random.default_rng(0)
    pixels, labels = Digits().open("train").take(torch.arange(60))
    images = pixels.permute(0, 2, 3, 1).numpy().astype(int)
    strength = np.where(np.arange(60) < COPIES, 2, 60)[:, None, None, None]
    noisy = np.clip(images + rng.integers(-1, 2, images.shape) * strength, 0, 255).astype(np.uint8)
    for number, rows in enumerate((slice(0, 35), slice(35, 60))):
        np.save(tmp_path / f"images-{number:05d}.npy", noisy[rows])
        np.save(tmp_path / f"labels-{number:05d}.npy", labels.numpy()[rows])
    return tmp_path


def chosen(folder, **settings) -> list[int]:
    """Positions of the images that the data has, by their content."""
    everything = GeneratedImages(path=folder).open("train")
    known = {image.numpy().tobytes(): i for i, image in enumerate(everything.take(torch.arange(60))[0])}
    some = GeneratedImages(path=folder, **settings).open("train")
    return [known[image.numpy().tobytes()] for image in some.take(torch.arange(len(some)))[0]]


@pytest.mark.parametrize("fraction", [0.05, 0.2, 1 / 3, 1.0])
def test_the_best_of_each_class_by_brute_force(fraction):
    rng = np.random.default_rng(1)
    labels, scores = rng.integers(0, 4, 200), rng.integers(0, 6, 200) / 5  # many ties
    allowed = rng.random(200) < 0.8
    expected = []
    for label in range(4):
        rows = [row for row in range(200) if labels[row] == label and allowed[row]]
        ranked = sorted(rows, key=lambda row: (-scores[row], row))
        expected += ranked[: max(1, int(len(rows) * fraction + 1e-9))]
    assert best_of_each_class(labels, scores, fraction, allowed).tolist() == sorted(expected)


def test_a_fraction_is_exact():
    labels, scores = np.zeros(50, int), np.ones(50)
    assert len(best_of_each_class(labels, scores, 0.58, labels == 0)) == 29  # 50 * 0.58 is 28.999999999999996
    assert best_of_each_class(labels, scores, 0.2, labels == 0).tolist() == list(range(10))


def test_scores_are_the_probability_of_the_label_and_choose_the_data(folder, trained):
    scored = rv.score(folder, trained, quiet=True, batch_size=16)
    images, labels = GeneratedImages(path=folder).open("train").take(torch.arange(60))
    with torch.no_grad():
        expected = trained(as_pixels(images)).softmax(1)[torch.arange(60), labels]
    assert np.allclose(scored.scores, expected, atol=1e-6)
    assert scored.distances is None
    rows = best_of_each_class(labels.numpy(), scored.scores, 0.4, np.ones(60, bool)).tolist()
    assert chosen(folder, top_fraction=0.4) == rows
    assert chosen(folder, top_fraction=1) == list(range(60))
    assert len(rows) < 30
    classes = GeneratedImages(path=folder, top_fraction=0.4, select=Selection(classes=(3, 5))).open("train")
    assert set(classes.take(torch.arange(len(classes)))[1].tolist()) == {0, 1}
    assert "best 40 % of each class" in classes.title


def test_near_duplicates_of_training_images_are_found_and_left_out(folder, trained):
    scored = rv.score(folder, trained, reference="digits", quiet=True)
    assert (scored.distances < 0.02).nonzero()[0].tolist() == list(range(COPIES))
    assert chosen(folder, min_distance=0.02) == list(range(COPIES, 60))
    allowed = scored.distances >= 0.02
    both = best_of_each_class(scored.labels, scored.scores, 0.5, allowed).tolist()
    assert chosen(folder, min_distance=0.02, top_fraction=0.5) == both
    with pytest.raises(UserError, match="no image is at least 9 from a training image"):
        GeneratedImages(path=folder, min_distance=9).open("train")


def test_the_nearest_image_is_that_of_all_pairs_and_a_copy_is_at_zero():
    real = InMemory(torch.rand(50, 3, 4, 4), torch.zeros(50, dtype=torch.long), "real")
    x = torch.cat([torch.rand(20, 3, 4, 4), real.images[7:8]])
    pairs = (x[:, None] - real.images).double().square().mean((2, 3, 4)).sqrt().min(1).values
    assert torch.allclose(Nearest(real)(x), pairs, atol=1e-6)
    assert float(Nearest(real)(x)[-1]) == 0
    with pytest.raises(UserError, match="another size than the generated ones"):
        Nearest(real)(torch.rand(2, 3, 5, 5))


def test_what_is_scored_is_not_scored_again_and_another_model_is_refused(folder, trained, monkeypatch):
    rv.score(folder, trained, quiet=True)
    before = (folder / "scores-00000.npy").stat().st_mtime_ns
    (folder / "scores-00001.npy").unlink()
    rv.score(folder, trained, quiet=True)
    assert (folder / "scores-00000.npy").stat().st_mtime_ns == before
    assert (folder / "scores-00001.npy").exists()
    with pytest.raises(UserError, match="these scores are by 'Normalized .*', not 'Sequential .*'; remove scores.json"):
        rv.score(folder, nn.Sequential(nn.Flatten(), nn.Linear(192, 10)), quiet=True)


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        (None, "scores-00000.npy: not there; robustvit score .* --model MODEL writes it"),
        (np.ones(34, np.float32), "scores-00000.npy: expected 35 finite numbers"),
        (np.ones(35, int), "scores-00000.npy: expected 35 finite numbers"),
        (np.full(35, np.nan), "scores-00000.npy: expected 35 finite numbers"),
    ],
)
def test_scores_that_do_not_fit_are_refused(numbers, message, folder):
    if numbers is not None:
        np.save(folder / "scores-00000.npy", numbers)
    with pytest.raises(UserError, match=message):
        GeneratedImages(path=folder, top_fraction=0.2).open("train")


def test_models_that_do_not_fit_are_refused(folder):
    few = nn.Sequential(nn.Flatten(), nn.Linear(192, 3))
    with pytest.raises(UserError, match="generated images: label . is outside the model's 3 classes"):
        rv.score(folder, few, quiet=True)
    larger = nn.Sequential(nn.Flatten(), nn.Linear(3072, 10))
    with pytest.raises(UserError, match=r"the model fails on images of shape \(3, 8, 8\)"):
        rv.score(folder, larger, quiet=True)
    broken = nn.Sequential(nn.Flatten(), nn.Linear(192, 10))
    with torch.no_grad():
        broken[1].bias.fill_(float("nan"))
    with pytest.raises(UserError, match="logits that are not finite"):
        rv.score(folder, broken, quiet=True)
    assert not list(folder.glob("scores-*"))
    with pytest.raises(ValueError, match="leave one out"):
        GeneratedImages(path=folder, top_fraction=0.1, select=Selection(images=(1, 2)))


def test_a_file_of_others_is_scored_too(trained, tmp_path):
    pixels, labels = Digits().open("train").take(torch.arange(30))
    np.savez(tmp_path / "edm.npz", image=pixels.permute(0, 2, 3, 1).numpy(), label=labels.numpy())
    scored = rv.score(tmp_path / "edm.npz", trained, quiet=True)
    best = GeneratedImages(path=tmp_path / "edm.npz", top_fraction=0.5).open("train")
    rows = best_of_each_class(labels.numpy(), scored.scores, 0.5, np.ones(30, bool))
    assert torch.equal(best.take(torch.arange(len(best)))[0], pixels[rows])


def test_positions_may_be_an_array(tmp_path):
    np.save(tmp_path / "rows.npy", np.array([9, 2, 700]))
    some = Digits(select=Selection(images=tmp_path / "rows.npy")).open("train")
    whole = Digits().open("train")
    assert torch.equal(some.take(torch.arange(3))[0], whole.take(torch.tensor([9, 2, 700]))[0])
    wrong = {"run from 0 to": [9999], "wanted several times": [1, 1], "whole numbers in a row": [0.5],
             "in a row, not int64": [[1]], "in a row": []}  # fmt: skip
    for message, rows in wrong.items():
        np.save(tmp_path / "rows.npy", np.array(rows))
        with pytest.raises(UserError, match=message):
            Digits(select=Selection(images=tmp_path / "rows.npy")).open("train")
    with pytest.raises(UserError, match="no file"):
        Digits(select=Selection(images=tmp_path / "nowhere.npy")).open("train")


def test_the_command_line_scores_and_writes_indices(folder, tmp_path, vit):
    save_model(vit, folder / "vit.safetensors")
    arguments = ["score", str(folder), "--model", str(folder / "vit.safetensors"), "--reference", "digits"]
    done = CliRunner().invoke(app, [*arguments, "--near", "0.02", "--indices", str(folder / "best.npy")])
    assert done.exit_code == 0, done.output
    assert f"{COPIES} of 60 are nearer than 0.02" in done.output
    positions = np.load(folder / "best.npy").tolist()
    assert positions == chosen(folder, top_fraction=0.2, min_distance=0.02)
    assert positions == chosen(folder, select=Selection(images=folder / "best.npy"))
    assert json.loads((folder / "scores.json").read_text())["by"].startswith("vit ")
    nothing = ["--near", "9", "--indices", str(folder / "none.npy")]
    for more, message in ((["--top-fraction", "2"], "above 0 and at most 1"), (nothing, "leaves no image for"),
                          (["--near", "nan"], "a distance, at least 0")):  # fmt: skip
        failed = CliRunner().invoke(app, [*arguments, *more])
        assert failed.exit_code == 2
        assert message in failed.output
    assert not (folder / "none.npy").exists()


@pytest.mark.parametrize("name", ["images-00001.npy", "labels-00001.npy"])
def test_numbers_of_images_that_were_replaced_are_refused_and_computed_again(name, folder, trained):
    before = rv.score(folder, trained, reference="digits", quiet=True)
    kept = (folder / "scores-00000.npy").stat().st_mtime_ns
    array = np.load(folder / name)
    np.save(folder / name, 255 - array if "images" in name else (array + 1) % 10)
    for kind, choice in (("scores", {"top_fraction": 0.4}), ("distances", {"min_distance": 0.02})):
        with pytest.raises(
            UserError, match=f"{kind}-00001.npy: not the {kind} of the images there now; robustvit score"
        ):
            GeneratedImages(path=folder, **choice).open("train")
    after = rv.score(folder, trained, reference="digits", quiet=True)
    assert (folder / "scores-00000.npy").stat().st_mtime_ns == kept
    assert np.array_equal(before.scores[:35], after.scores[:35])
    assert not np.allclose(before.scores[35:], after.scores[35:], atol=1e-3)
    assert np.allclose(before.distances[35:], after.distances[35:]) == ("labels" in name)
    GeneratedImages(path=folder, top_fraction=0.4, min_distance=0.02).open("train")


def test_numbers_without_a_description_are_not_those_of_the_next_model(folder, trained):
    rv.score(folder, trained, quiet=True)
    (folder / "scores.json").unlink()
    with pytest.raises(UserError, match="scores-00000.npy: not the scores of the images there now"):
        GeneratedImages(path=folder, top_fraction=0.4).open("train")
    other = nn.Sequential(nn.Flatten(), nn.Linear(192, 10))
    scored = rv.score(folder, other, quiet=True)
    images, labels = GeneratedImages(path=folder).open("train").take(torch.arange(60))
    with torch.no_grad():
        expected = other(as_pixels(images)).softmax(1)[torch.arange(60), labels]
    assert np.allclose(scored.scores, expected, atol=1e-6)


def test_copies_of_images_keep_their_numbers_and_other_real_images_are_noticed(folder, trained):
    real = InMemory(torch.rand(50, 3, 8, 8), torch.zeros(50, dtype=torch.long), "real")
    rv.score(folder, trained, reference=real, quiet=True)
    for path in folder.glob("*-0*.npy"):
        os.utime(path, ns=(0, 0))
    rows = chosen(folder, top_fraction=0.4)
    rv.score(folder, trained, reference=real, quiet=True)
    assert all(path.stat().st_mtime_ns == 0 for path in folder.glob("*-0*.npy"))
    assert len(rows) < 30
    other = InMemory(1 - real.images, real.labels, "real")
    with pytest.raises(UserError, match="these distances are by 'real .*', not 'real .*'; remove distances.json"):
        rv.score(folder, trained, reference=other, quiet=True)

"""Adversarial images on disk: all of them, verified, whatever happened while they were made."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import robustvit as rv
from conftest import linear_digits, tiny_vit
from robustvit.attacks import Square
from robustvit.cli.main import app
from robustvit.core.adversarial import FILE, Adversarial
from robustvit.core.errors import UserError
from robustvit.evaluation import evaluate, evaluate_curve, verify
from robustvit.evaluation.saved import Saver
from robustvit.losses import is_fooled
from robustvit.models import save_model

THREAT = rv.LpBall("inf", 0.1)
L2 = rv.LpBall("2", 1.0)


def saved(result):
    return Adversarial.load(Path(result.folder) / FILE)


def judged(model, data, run, **options):
    options = {"suite": ["fgsm", "pgd-5"], "threat": THREAT, "save_images": True, "quiet": True, **options}
    return evaluate(model, data, run=run, **options)


def check(found, result, model, data, threat=THREAT):
    """Every image that fell is there, once, and fools."""
    x, y = data
    fell = result.indices[result.is_correct & ~result.is_robust]
    indices, labels = torch.from_numpy(found.index), torch.from_numpy(found.labels)
    assert sorted(indices.tolist()) == fell.tolist()
    images = torch.from_numpy(np.array(found.images))
    assert images.dtype == torch.float32
    assert torch.equal(labels, y[indices])
    assert threat.contains(x[indices], images).all()
    assert is_fooled(model(images), labels).all()


@pytest.mark.parametrize("threat", [THREAT, L2], ids=str)
def test_every_image_that_fell_is_saved_and_fools(threat, trained, digits, tmp_path):
    result = judged(trained, digits, tmp_path, threat=threat, batch_size=50)
    found = saved(result)
    check(found, result, trained, digits, threat)
    assert found.facts["verified_in_batches_of"] == 25
    assert not list(Path(result.folder).glob("adversarial-parts"))
    assert result.warnings == ()
    assert result.provenance.settings["quantized"] is False


@pytest.mark.parametrize("threat", [rv.LpBall("inf", "8/255"), rv.LpBall("inf", 0.1), L2], ids=str)
def test_quantized_images_are_pictures(threat, trained, digits, tmp_path):
    plain = evaluate(trained, digits, suite="pgd-20", threat=threat, quiet=True)
    result = judged(trained, digits, tmp_path, suite="pgd-20", threat=threat, quantized=True)
    found = saved(result)
    check(found, result, trained, digits, threat)
    grid = np.array(found.images) * 255
    assert np.abs(grid - grid.round()).max() < 1e-4
    assert torch.equal(torch.from_numpy(grid.round()).float() / 255, torch.from_numpy(np.array(found.images)))
    assert len(found) > 0
    assert result.robust_accuracy >= plain.robust_accuracy - 0.01
    assert result.robust_accuracy <= plain.robust_accuracy + 0.1
    assert result.provenance.settings["quantized"]
    other = judged(trained, digits, tmp_path, suite="pgd-20", threat=threat)
    assert other.folder != result.folder


@pytest.mark.parametrize("norm", ["inf", "2"])
def test_quantizing_stays_inside_the_ball(norm):
    streams = rv.sample_streams(0, range(200))
    x = (streams.uniform((3, 6, 6), at="x") * 255).round() / 255
    for eps in (8 / 255, 0.1, 0.013) if norm == "inf" else (0.5, 3.0):
        threat = rv.LpBall(norm, eps)
        x_adv = threat.random_start(x, streams.child("adv"))
        stored = threat.quantized(x, x_adv)
        assert threat.contains(x, stored).all()
        assert ((stored * 255) - (stored * 255).round()).abs().max() < 1e-4
        assert (stored - x_adv).abs().max() <= 1 / 255 + 1e-6
        assert torch.equal(threat.quantized(x, x), x)


@pytest.mark.parametrize("norm", ["inf", "2", "1"])
def test_quantizing_leaves_pixels_alone_that_can_be_stored(norm):
    """Up to rounding, even where others, half way between two levels, have to give way towards the image."""
    x = torch.full((1, 3, 16, 16), 128 / 255)
    levels = torch.arange(768).view(1, 3, 16, 16) % 100
    stored = torch.arange(768).view(1, 3, 16, 16) % 2 == 0
    side = torch.where(torch.arange(768).view(1, 3, 16, 16) % 4 < 2, 1, -1)
    x_adv = (128 + side * torch.where(stored, levels - 2e-4, levels + 0.6)) / 255
    threat = rv.LpBall(norm, rv.LpBall(norm, 0).distance(x, x_adv).item())
    quantized = threat.quantized(x, x_adv)
    assert threat.contains(x, quantized).all()
    assert torch.equal((quantized * 255).round()[stored], (x_adv * 255).round()[stored])
    assert ((quantized - x_adv).abs() * 255 < 1).all()


def test_images_are_found_again_when_they_were_not_kept(trained, digits, tmp_path):
    first = judged(trained, digits, tmp_path, save_images=False, suite=["fgsm", "pgd-5x2", Square(queries=30)])
    stored = (Path(first.folder) / "result.json").read_text()
    second = judged(trained, digits, tmp_path, suite=["fgsm", "pgd-5x2", Square(queries=30)])
    assert second.folder == first.folder
    assert (Path(first.folder) / "result.json").read_text() == stored
    check(saved(second), second, trained, digits)


def test_a_kill_loses_no_image_and_doubles_none(trained, digits, tmp_path):
    whole = judged(trained, digits, tmp_path / "whole", batch_size=32)
    folder = Path(whole.folder)
    lines = (folder / "ledger-0.jsonl").read_bytes().splitlines(keepends=True)
    content = saved(whole)
    for number, cut in enumerate((0, 365, 500, len(lines))):
        again = tmp_path / str(cut) / "eval" / folder.name
        again.mkdir(parents=True)
        (again / "ledger-0.jsonl").write_bytes(b"".join(lines[:cut]))
        keeper = Saver(again)
        for rows in np.array_split(np.arange(len(content))[: 40 * number], 6):
            images, index = torch.from_numpy(content.images[rows].copy()), torch.from_numpy(content.index[rows])
            keeper.offer(
                index, images, images, torch.from_numpy(content.labels[rows]), images, torch.ones(len(rows)) > 0
            )
        if number:
            (again / "adversarial-parts" / "99999999.npz").write_bytes(b"torn")
        result = judged(trained, digits, tmp_path / str(cut), batch_size=32)
        found = saved(result)
        check(found, result, trained, digits)
        assert len(set(found.index.tolist())) == len(found) == len(content)


def test_along_a_curve_every_eps_has_all_its_images(trained, digits, tmp_path):
    results = evaluate_curve(
        trained, digits, threats=[THREAT.scaled(f) for f in (0.3, 0.6, 1)], suite="pgd-5", run=tmp_path,
        save_images=True, quiet=True,
    )  # fmt: skip
    for result in results:
        check(saved(result), result, trained, digits, rv.LpBall(result.threat.norm, result.threat.eps))


def test_what_fools_only_where_it_was_found_is_not_saved(trained, digits, tmp_path):
    class Sensitive(torch.nn.Module):
        """Wrong about everything that isn't clean, in batches of more than 30."""

        def forward(self, x):
            logits = torch.nn.functional.one_hot(digits[1], 10).float()
            gap, nearest = torch.cdist(x.flatten(1), digits[0].flatten(1)).min(1)
            wrong = (gap > 0.05) if len(x) > 30 else torch.zeros_like(gap, dtype=torch.bool)
            return (
                torch.where(wrong[:, None], logits[nearest].roll(1, 1), logits[nearest]) + 0 * x.sum((1, 2, 3))[:, None]
            )

    result = judged(Sensitive(), digits, tmp_path, suite="pgd-1", images=50, batch_size=50)
    assert any("fool only in the batch that found them" in warning for warning in map(str, result.warnings))
    assert len(saved(result)) == 0


def test_a_saved_set_is_judged_on_any_model(trained, digits, tmp_path):
    result = judged(trained, digits, tmp_path)
    file = Path(result.folder) / FILE
    fell = int((result.is_correct & ~result.is_robust).sum())
    verdict = verify(file, trained, data="digits")
    assert (verdict.images, verdict.fooled, verdict.inside) == (fell, fell, fell)
    assert (verdict.right, verdict.fooled_of_right) == (fell, fell)
    for batch_size in (1, 7):
        assert verify(file, trained, batch_size=batch_size).fooled == fell
    other = linear_digits()
    found = saved(result)
    expected = is_fooled(other(torch.from_numpy(np.array(found.images))), torch.from_numpy(found.labels))
    verdict = verify(file, other, data=digits)
    assert verdict.fooled == expected.sum() < fell
    assert verdict.fooled_of_right < verdict.right
    assert verify(file, other).inside is None
    with pytest.raises(UserError, match="has 40 images"):
        verify(file, trained, data=(digits[0][:40], digits[1][:40]))
    last = int(found.index.max())
    with pytest.raises(UserError, match=f"has {last} images, the saved set names image {last}"):
        verify(file, trained, data=(digits[0][:last], digits[1][:last]))
    with pytest.raises(UserError, match="not the images"):
        verify(file, trained, data=(digits[0], digits[1].flip(0)))
    with pytest.raises(UserError, match="don't fit labels"):
        verify(file, lambda x: x.flatten(1)[:, :3])
    with pytest.raises(UserError, match="fails on images"):
        verify(file, torch.nn.Linear(5, 5))


def test_on_the_command_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    save_model(tiny_vit(), tmp_path / "vit.safetensors")
    run = CliRunner().invoke(
        app,
        ["evaluate", "vit.safetensors", "--data", "digits", "--suite", "fgsm", "--eps", "0.3", "--save-images",
         "--quantized", "--images", "80"],
    )  # fmt: skip
    assert run.exit_code == 0, run.output
    (file,) = tmp_path.glob(f"runs/*/eval/*/{FILE}")
    count = json.loads(file.with_suffix(".json").read_text())["images"]
    assert count > 0
    shown = CliRunner().invoke(app, ["verify", str(file), "vit.safetensors", "--data", "digits"]).output
    assert f"{count} of {count} images fool vit (100.0 %)" in shown
    assert f"{count} lie inside Linf 0.3" in shown
    assert "isn't known" in CliRunner().invoke(app, ["verify", str(file), "vit.safetensors"]).output
    (tmp_path / "noise.npy").write_bytes(b"noise")
    (tmp_path / "noise.json").write_text("{}")
    for wrong in ("absent.npy", "noise.npy", "vit.safetensors"):
        bad = CliRunner().invoke(app, ["verify", wrong, "vit.safetensors"])
        assert bad.exit_code == 2, wrong
        assert "saved set" in bad.output
        assert "Traceback" not in bad.output


def test_what_is_saved_is_not_saved_again(trained, digits, tmp_path):
    path = Path(judged(trained, digits, tmp_path, images=40).folder) / FILE
    path.write_bytes(b"as it was")
    judged(trained, digits, tmp_path, images=40)
    assert path.read_bytes() == b"as it was"
    path.unlink()
    judged(trained, digits, tmp_path, images=40, save_images=False)
    assert not path.exists()

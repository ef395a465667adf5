"""What a newcomer meets: batch sizes by memory, progress inside a batch, accuracies of the same step."""

import json

import numpy as np
import pytest
import torch
from torch import nn

import robustvit as rv
from robustvit.core import progress
from robustvit.core.streams import sample_streams
from robustvit.evaluation import batches, open_subject
from robustvit.evaluation.batches import batch_size_by_memory, bytes_per_image
from robustvit.training.recipe import recipe_from
from robustvit.training.step import take_step

THREAT = rv.LpBall("inf", 0.1)


class Keeps(nn.Module):
    """Keeps 4 bytes of so many numbers for each image, of which two operations need the same ones."""

    def __init__(self, numbers):
        super().__init__()
        self.numbers, self.weight = numbers, nn.Parameter(torch.ones(1 << 20))

    def forward(self, x):
        wide = x.flatten(1)[:, :1].expand(-1, self.numbers).exp()
        return (wide.square().mean(1, keepdim=True) * self.weight[:10]).expand(-1, 10)


@pytest.mark.parametrize(
    ("numbers", "size"), [(1 << 10, 128), (1 << 21, 128), (3 << 20, 64), (1 << 24, 16), (1 << 30, 8)]
)
def test_the_batch_size_is_what_fits_in_the_budget(numbers, size, monkeypatch):
    monkeypatch.setattr(batches, "bytes_per_image", lambda model, x: 4 * numbers)
    assert batch_size_by_memory(Keeps(1), torch.zeros(2, 3, 8, 8)) == size


def test_memory_is_counted_once_for_each_storage_and_without_weights():
    kept = bytes_per_image(Keeps(4096).requires_grad_(False), torch.rand(2, 3, 8, 8))
    assert 4 * 4096 <= kept < 4 * 4096 + 200


def test_verdicts_are_those_of_any_batch_size(trained, digits, monkeypatch):
    data = tuple(part[:40] for part in digits)
    with open_subject(trained, data).ready() as subject:
        assert subject.batch_size == 128
    monkeypatch.setattr(batches, "CPU_BYTES", 1)
    with open_subject(trained, data).ready() as subject:
        assert subject.batch_size == 8
    small = rv.evaluate(trained, data, suite="pgd-5", threat=THREAT, quiet=True)
    given = rv.evaluate(trained, data, suite="pgd-5", threat=THREAT, quiet=True, batch_size=40)
    assert np.array_equal(small.is_robust, given.is_robust)


def test_progress_is_shown_inside_a_batch(trained, digits, monkeypatch, capsys):
    monkeypatch.setattr(progress, "PLAIN_SECONDS", -1.0)
    rv.evaluate(trained, tuple(part[:16] for part in digits), suite="square:queries=30", threat=rv.LpBall("inf", 0.01))
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("square")]
    steps = [line.partition("step ")[2].split(" ")[0] for line in lines if "step " in line and ": 0/" in line]
    assert len(set(steps)) > 5, "in the only batch, before any image is done"


def test_progress_is_shown_for_the_checks_before_the_first_stage(trained, digits, monkeypatch, capsys):
    monkeypatch.setattr(progress, "PLAIN_SECONDS", -1.0)
    rv.evaluate(trained, tuple(part[:16] for part in digits), suite="fgsm", threat=THREAT)
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("checks: ")]
    shown = [(line.split()[1], line.partition("now ")[2].split()[0]) for line in lines]
    names = ["outputs", "normalization", "gradients", "one-hot-attention", "wrong-gradients", "equal-margins", "steps"]
    assert shown == [(f"{number}/{len(names)}", name) for number, name in enumerate(names)]
    rv.evaluate(trained, tuple(part[:16] for part in digits), suite="clean", threat=THREAT)
    assert "checks: 1/2 checks  now normalization" in capsys.readouterr().err


@pytest.mark.parametrize("objective", ["adversarial", "trades", "mart", "random_dropping"])
def test_clean_and_robust_accuracy_are_of_the_same_step(objective, vit, digits):
    """Before the step, in the mode of the training."""
    changes = [f"objective={{name: {objective}}}"]
    phase = recipe_from("digits/trades", changes).phases[0]
    x, y = (part[:24] for part in digits)
    with torch.no_grad():
        expected = (vit(x).argmax(1) == y).float()
    optimizer = torch.optim.SGD(vit.parameters(), lr=10.0)
    (turn,), streams = phase.turns, sample_streams(0, range(24))
    report = take_step(vit, optimizer, phase, turn, x, y, THREAT, streams, 0.5, asks_clean=True)
    assert torch.equal(report.clean_hits, expected)
    with torch.no_grad():
        assert not torch.equal((vit(x).argmax(1) == y).float(), expected), "the step must have moved the model"
    report = take_step(vit, optimizer, phase, turn, x, y, THREAT, streams, 0.5)
    assert (report.clean_hits is not None) == (objective in ("trades", "mart")), "without another pass"


def test_training_records_clean_accuracy_wherever_it_records_robust_accuracy(tmp_path):
    run = rv.train("digits/trades", run=tmp_path / "run", overrides=["epochs=1"], quiet=True, max_steps=12)
    rows = [json.loads(line) for line in run.metrics.path.read_text().splitlines()]
    rows = [row for row in rows if row.get("kind") == "train"]
    assert rows
    assert all(("clean_accuracy" in row) == ("robust_accuracy" in row) for row in rows)

"""Steps that can't be taken, trainings that go nowhere: noticed, survived, reported."""

import math
from dataclasses import asdict

import pytest
import torch

import robustvit as rv
from robustvit.core.errors import UserError
from robustvit.core.journal import read_rows
from robustvit.core.result import ResultWarning
from robustvit.core.streams import sample_streams
from robustvit.models import fingerprint
from robustvit.objectives import Standard
from robustvit.threats import LpBall
from robustvit.training import Phase
from robustvit.training.health import SKIPS_IN_A_ROW, Health
from robustvit.training.step import take_step
from test_training import TINY

THREAT = LpBall("inf", 0.1)


def model_with_statistics():
    return torch.nn.Sequential(torch.nn.BatchNorm2d(3), torch.nn.Flatten(), torch.nn.Linear(192, 10))


def step(model, x, y, **settings):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    phase = Phase(epochs=1, objective=settings.pop("objective", Standard()), **settings)
    return take_step(model, optimizer, phase, phase.turns[0], x, y, THREAT, sample_streams(0, range(len(y))), 0.5)


def test_a_step_that_is_not_finite_moves_nothing(digits):
    x, y = digits[0][:8].clone(), digits[1][:8]
    x[3, 0, 0, 0] = math.nan
    model = model_with_statistics()
    before = fingerprint(model)
    assert not step(model, x, y).finite
    assert fingerprint(model) == before
    assert step(model, digits[0][:8], y).finite
    assert fingerprint(model) != before


def test_a_batch_in_parts_has_the_gradient_of_the_whole(digits):
    x, y = digits[0][:30].double(), digits[1][:30]
    norms = []
    for parts in (1, 4):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 10)).double()
        report = step(model, x, y, objective="mart", accumulate=parts)
        norms.append(report.gradient_norm)
        assert report.loss.shape == (30,)
    assert norms[0] == pytest.approx(norms[1], rel=1e-12)


def test_many_skipped_steps_in_a_row_stop_the_training():
    health = Health(num_classes=10)
    for _ in range(SKIPS_IN_A_ROW - 1):
        health.see_step(False, 0, 8)
    health.see_step(True, 4, 8)
    assert (health.skipped, health.skipped_in_a_row) == (SKIPS_IN_A_ROW - 1, 0)
    with pytest.raises(UserError, match="smaller optimizer.lr"):
        for _ in range(SKIPS_IN_A_ROW):
            health.see_step(False, 0, 8)


def test_a_training_that_explodes_ends_with_a_sentence_and_its_folder_stays_whole(tmp_path):
    recipe = {**TINY, "optimizer": {"opt": "sgd", "lr": 1e30}, "clip_norm": None, "schedule": {"name": "cosine"}}
    with pytest.raises(UserError, match="isn't finite"):
        rv.train(recipe, run=tmp_path, quiet=True)
    assert all(math.isfinite(row["loss"]) for row in read_rows(tmp_path / "metrics.jsonl") if row.get("loss"))


def test_stuck_at_chance_is_reported_once_and_learning_is_not():
    stuck, learning = Health(10), Health(10)
    warnings = []
    for epoch in range(1, 11):
        stuck.see_step(True, 11, 100)
        learning.see_step(True, 10 * epoch, 100)
        warnings += stuck.end_epoch(epoch, epoch / 10, None)
        assert not learning.end_epoch(epoch, epoch / 10, None)
    assert [warning.name for warning in warnings] == ["stuck-at-chance"]
    assert warnings[0].observation.endswith("is 11.0 %, hardly better than chance among 10 classes")
    assert warnings[0].advice.startswith("try an eps warm-up")


def test_catastrophic_overfitting_is_reported():
    health = Health(10)
    history = [(0.3, 0.3), (0.4, 0.4), (0.8, 0.05), (0.9, 0.0)]
    warnings = []
    for epoch, (training, held) in enumerate(history, 1):
        health.see_step(True, 100 * training, 100)
        warnings.append(health.end_epoch(epoch, epoch / 10, (round(1000 * held), 1000)))
    assert [len(each) for each in warnings] == [0, 0, 1, 0]
    (warning,) = warnings[2]
    assert warning.name == "catastrophic-overfitting"
    assert "fell from 40.0 % (epoch 2) to 5.0 %" in warning.observation
    assert warning.advice.startswith("use 2 steps or more")
    # a hold-out that falls together with the training is another illness
    other = Health(10)
    for epoch, (training, held) in enumerate([(0.8, 0.5), (0.3, 0.2)], 1):
        other.see_step(True, 100 * training, 100)
        assert not other.end_epoch(epoch, 0.1, (round(1000 * held), 1000))


def test_label_leaking_from_the_first_epoch_is_reported():
    health = Health(10)
    for epoch, training in enumerate((0.1, 0.3, 0.9), 1):
        health.see_step(True, 100 * training, 100)
        warnings = health.end_epoch(epoch, epoch / 10, (0, 1000), full_eps=epoch > 2)
        assert [warning.name for warning in warnings] == ["catastrophic-overfitting"] * (epoch > 2)


def test_chance_alone_and_unattacked_training_are_no_overfitting():
    few = Health(10)
    for epoch, (training, held) in enumerate([(0.100, 15), (0.107, 10)], 1):  # noise, on 128 images
        few.see_step(True, 1000 * training, 1000)
        assert not few.end_epoch(epoch, 0.1, (held, 128))
    standard = Health(10)
    for epoch, (training, held) in enumerate([(0.3, 250), (0.9, 50)], 1):
        standard.see_step(True, 100 * training, 100, attacked=False)
        assert not standard.end_epoch(epoch, 0.1, (held, 1000))


def test_seventy_percent_of_two_classes_is_not_stuck():
    health = Health(2)
    health.see_step(True, 72, 100)
    assert not health.end_epoch(5, 0.5, None)
    health.see_step(True, 51, 100)
    assert [warning.name for warning in health.end_epoch(6, 0.6, None)] == ["stuck-at-chance"]


def test_health_is_part_of_the_state():
    health = Health(10, skipped=3, warned=["stuck-at-chance"])
    assert Health(**asdict(health)) == health


def test_out_of_memory_is_a_sentence(tmp_path, monkeypatch):
    def hungry(self, model, x, x_adv, y):
        torch.empty(1 << 50)

    monkeypatch.setattr(Standard, "loss", hungry)
    with pytest.raises(UserError, match="in 1 parts: .* accumulate=2"):
        rv.train({**TINY, "objective": "standard", "accumulate": 1}, run=tmp_path, quiet=True)


def test_a_warning_is_a_row_of_the_metrics_and_a_line(tmp_path, monkeypatch, capsys):
    warning = ResultWarning("stuck-at-chance", "11.0 % after 3 epochs", "try an eps warm-up")
    monkeypatch.setattr(Health, "end_epoch", lambda self, *args: [warning])
    rv.train({**TINY, "epochs": 1}, run=tmp_path, quiet=True)
    (row,) = [row for row in read_rows(tmp_path / "metrics.jsonl") if row["kind"] == "warning"]
    assert ResultWarning(row["name"], row["observation"], row["advice"]) == warning
    assert "warning: stuck-at-chance: 11.0 % after 3 epochs; try an eps warm-up\n" in capsys.readouterr().err

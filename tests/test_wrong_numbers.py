"""Numbers that were once wrong although nothing failed: each is planted and must come out right."""

from pathlib import Path

import pytest
import torch
from torch import nn

import robustvit as rv
from robustvit.core.journal import read_rows
from robustvit.evaluation import Plan, Stage, evaluate

EPS = 8 / 255


def off_the_grid(count: int, size: int, seed: int = 0) -> torch.Tensor:
    """Images between the steps of 1/255, as resized or cropped ones are."""
    return rv.sample_streams(seed, range(count)).uniform((3, size, size), at="x")


@pytest.fixture(scope="module")
def weak() -> tuple[nn.Module, tuple[torch.Tensor, torch.Tensor]]:
    """A linear model of 64 x 64 pixels and images that it knows, every one of which falls at 8/255."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 64 * 64, 10))
    x = off_the_grid(40, 64)
    return model.eval(), (x, model(x).argmax(1))


@pytest.mark.parametrize("suite", ["fgsm", "pgd-20"])
def test_quantized_images_off_the_grid_are_not_refused_by_the_judge(suite, weak):
    model, data = weak
    plain, quantized = (
        evaluate(model, data, suite=suite, threat=rv.LpBall("inf", EPS), quantized=quantized, quiet=True)
        for quantized in (False, True)
    )
    assert plain.robust_accuracy == quantized.robust_accuracy == 0
    assert not quantized.warnings


@pytest.mark.parametrize("threat", [rv.LpBall("inf", EPS), rv.LpBall("2", 1.0), rv.LpBall("1", 20.0)], ids=str)
def test_rounding_off_the_grid_stays_inside_the_ball(threat):
    x = off_the_grid(50, 64)
    stored = threat.quantized(x, threat.random_start(x, rv.sample_streams(1, range(len(x)))))
    assert threat.contains(x, stored).all()
    is_held = threat.contains(x, (x * 255).round() / 255)  # by any image on the grid: this one is the nearest
    on_grid = ((stored * 255) - (stored * 255).round()).abs().flatten(1).amax(1) < 1e-4
    assert torch.equal(on_grid, is_held)
    assert torch.equal(stored[~is_held], x[~is_held])


@pytest.mark.parametrize("norm", ["2", "1"])
def test_what_the_ball_leaves_beyond_rounding_is_used(norm):
    x = off_the_grid(20, 8)
    rounded = (x * 255).round() / 255
    threat = rv.LpBall(norm, 1.2 * float(rv.LpBall(norm, 0).distance(x, rounded).max()))
    far = threat.project(x, x + rv.sample_streams(1, range(len(x))).normal(x.shape[1:], at="far"))
    stored = threat.quantized(x, far)
    assert threat.contains(x, stored).all()
    assert (stored != rounded).flatten(1).any(1).all()


def test_no_search_ends_at_a_rounded_image_outside_the_ball(weak, monkeypatch, tmp_path):
    model, data = weak
    monkeypatch.setattr(rv.LpBall, "quantized", lambda threat, x, x_adv: (x + 2 * (x_adv - x)).clamp(0, 1))
    result = evaluate(
        model, data, suite="pgd-5", threat=rv.LpBall("inf", EPS), quantized=True, run=tmp_path, quiet=True
    )
    assert result.robust_accuracy == 1
    rows = read_rows(next(tmp_path.glob("eval/*/ledger-0.jsonl")))
    assert {row["steps"] for row in rows if row["stage"] == "pgd-5"} == {5}, "none leaves early"


def test_verify_and_evaluate_agree_on_logits_that_are_not_finite(trained, digits, tmp_path):
    threat = rv.LpBall("inf", 0.1)
    result = evaluate(trained, digits, suite="fgsm", threat=threat, run=tmp_path, save_images=True, quiet=True)

    def broken(x):
        """Of no use for the class 3."""
        logits = trained(x)
        return torch.where((logits.argmax(1) == 3)[:, None], torch.nan, logits)

    clean = evaluate(broken, digits, suite="clean", threat=threat, quiet=True)
    verdict = rv.verify(Path(result.folder) / "adversarial.npy", broken, data=digits)
    fell = result.is_correct & ~result.is_robust
    assert verdict.images == fell.sum()
    assert verdict.right == (clean.is_correct & fell).sum() < fell.sum()
    assert verdict.fooled_of_right <= verdict.right


class Aims:
    """An attack that changes nothing and remembers what it was told to aim at."""

    name, norms = "aims", ("inf", "2", "1")

    def __init__(self):
        self.seen = []

    def __call__(self, model, x, y, threat, search):
        self.seen += search.target.tolist()
        return x


@pytest.mark.parametrize("order", ["ranked", "nearest"])
def test_no_target_is_the_true_class_where_logits_tie(order):
    """All classes do, as after a head of zeros; the first, which is predicted, is the true one."""

    def tied(images):
        return 0 * images.flatten(1)[:, :10]

    x, y = off_the_grid(30, 8), torch.zeros(30, dtype=torch.int64)
    aims = Aims()
    plan = Plan("aims", tuple(Stage(f"aims/{rank}", aims, rank, order) for rank in range(2, 11)))
    result = evaluate(tied, (x, y), suite=plan, threat=rv.LpBall("inf", EPS), quiet=True, checks=False)
    assert result.clean_accuracy == 1
    assert len(aims.seen) == 9 * len(x)
    assert set(aims.seen) == set(range(1, 10))


def probe_warnings(model, data, **options):
    result = evaluate(model, data, suite="fgsm", threat=rv.LpBall("inf", 0.01), quiet=True, **options)
    return {warning.name for warning in result.warnings}


@pytest.mark.parametrize("logit", [-1e9, -1e4, 1e4])
def test_a_constant_logit_does_not_hide_that_a_model_is_random(logit, trained, digits):
    def masked(logits):
        return torch.cat([logits[:, :9], torch.full_like(logits[:, 9:], logit)], 1)

    def dropping(x):
        return masked(trained(nn.functional.dropout(x, 0.1)))

    assert "random-outputs" in probe_warnings(dropping, digits)
    assert "random-outputs" not in probe_warnings(lambda x: masked(trained(x)), digits)


@pytest.mark.parametrize("images", [1, 50])
def test_rounding_is_not_called_random(images, trained, digits):
    def rounded_otherwise(x):
        logits = trained(x)
        return logits * (1 + 1e-6 * torch.randn_like(logits)) - 1e4 * (torch.arange(10) == 3)

    assert "random-outputs" not in probe_warnings(rounded_otherwise, digits, images=images)

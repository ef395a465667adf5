"""Balls."""

import pytest
import torch

from robustvit.core.streams import sample_streams
from robustvit.threats import LpBall

THREATS = [
    LpBall("inf", 8 / 255),
    LpBall("inf", 1.0),
    LpBall("2", 0.5),
    LpBall("2", 20.0),
    LpBall("1", 2.0),
    LpBall("1", 50.0),
    LpBall("inf", 0),
    LpBall("2", 0),
    LpBall("1", 0),
]


@pytest.fixture
def x():
    return sample_streams(0, range(16)).uniform((3, 6, 5), at="x").clamp(0.02, 0.98).round(decimals=1)


@pytest.mark.parametrize("threat", THREATS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_projection_stays_inside_and_moves_nothing_that_is(threat, dtype, x):
    x = x.to(dtype)
    far = x + 3 * sample_streams(1, range(16)).normal(x.shape[1:], at="far", dtype=dtype)
    once = threat.project(x, far)
    assert threat.contains(x, once).all()
    assert torch.allclose(threat.project(x, once), once, atol=1e-6)
    assert torch.allclose(threat.project(x, x), x, atol=0)


@pytest.mark.parametrize("threat", THREATS, ids=str)
def test_random_starts_are_inside_and_each_samples_own(threat, x):
    start = threat.random_start(x, sample_streams(3, range(16)))
    assert threat.contains(x, start).all()
    assert torch.equal(start[5:9], threat.random_start(x[5:9], sample_streams(3, range(5, 9))))


def test_random_starts_fill_the_ball(x):
    x = torch.full_like(x, 0.5)
    linf = LpBall("inf", 0.1).random_start(x, sample_streams(0, range(16))) - x
    assert linf.abs().mean().item() == pytest.approx(0.05, rel=0.05)
    l2 = (LpBall("2", 0.1).random_start(x, sample_streams(0, range(16))) - x).flatten(1).norm(dim=1)
    assert l2.max() <= 0.1 + 1e-6
    assert l2.mean() > 0.09  # almost all of a 90-dimensional ball lies near its border


@pytest.mark.parametrize("threat", THREATS[:6], ids=str)
def test_outside_is_outside(threat, x):
    x = torch.full_like(x, 0.5)
    beyond = x.clone()
    beyond[:, 0, 0, 0] += threat.eps * 1.001 + 1e-5
    assert not threat.contains(x, beyond).any()
    assert not threat.contains(x, torch.full_like(x, float("nan"))).any()
    assert not threat.contains(torch.ones_like(x), torch.ones_like(x) + 1e-4).any()


@pytest.mark.parametrize("norm", ["inf", "2"])
@pytest.mark.parametrize("scale", [1e-30, 1e-20, 1.0, 1e20])
def test_the_steepest_step_has_length_one_at_any_gradient_scale(norm, scale):
    gradient = sample_streams(0, range(4)).normal((3, 4, 4), at=0) * scale
    step = LpBall(norm, 1).steepest(gradient)
    length = step.flatten(1).abs().amax(1) if norm == "inf" else step.flatten(1).norm(dim=1)
    assert torch.allclose(length, torch.ones(4), atol=1e-5)
    assert LpBall(norm, 1).steepest(torch.zeros(1, 3, 4, 4)).abs().sum() == 0

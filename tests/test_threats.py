"""Balls."""

import pytest
import torch

from robustvit.core.streams import sample_streams
from robustvit.threats import LpBall, lp_norm

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


@pytest.mark.parametrize("norm", ["inf", "2", "1"])
def test_random_starts_are_uniform_over_the_ball(norm):
    """A ball of a fraction of the radius holds the fraction to the power 3 of them, every octant an eighth."""
    x, threat = torch.full((4000, 3, 1, 1), 0.5), LpBall(norm, 0.4)
    delta = (threat.random_start(x, sample_streams(0, range(4000))) - x).flatten(1)
    radius = threat.distance(x, x + delta.view_as(x)) / 0.4
    for fraction in (0.3, 0.5, 0.7, 0.9):
        assert (radius < fraction).double().mean().item() == pytest.approx(fraction**3, abs=0.03)
    octants = ((delta > 0) * torch.tensor([1, 2, 4])).sum(1).bincount(minlength=8) / 4000
    assert torch.allclose(octants, torch.full((8,), 1 / 8), atol=0.03)


@pytest.mark.parametrize("norm", ["inf", "2", "1"])
@pytest.mark.parametrize("eps", [1e-3, 0.3])
def test_a_ball_ends_where_float32_can_tell(norm, eps):
    """One part in 10000 beyond the border is outside, one part in a million is rounding; the box has no such rim."""
    x = torch.full((1, 3, 2, 2), 0.5, dtype=torch.float64)
    step = torch.zeros_like(x)
    step[0, 1, 0, 1] = eps
    threat = LpBall(norm, eps)
    assert threat.contains(x, x + step * (1 + 1e-6)).all()
    excess = max(1e-4, 2e-6 / eps) if norm == "inf" else 1e-4
    assert not threat.contains(x, x + step * (1 + excess)).any()
    for border, outwards in ((0.0, -1), (1.0, 1)):
        x = torch.full_like(x, border)
        assert threat.contains(x, x).all()
        assert not threat.contains(x, x + outwards * torch.finfo(torch.float64).eps).any()


@pytest.mark.parametrize("norm", ["inf", "2", "1"])
@pytest.mark.parametrize("eps", [0.0, 0.3])
def test_the_rim_of_a_ball(norm, eps):
    """1e-6 in Linf; 1e-5 of eps and, where that is nothing, 1e-9 in L2 and L1."""
    x = torch.full((1, 3, 2, 2), 0.5, dtype=torch.float64)
    rim = 1e-6 if norm == "inf" else 1e-5 * eps + 1e-9
    for part, inside in ((0.9, True), (1.1, False)):
        moved = x.clone()
        moved[0, 1, 0, 1] += eps + part * rim
        assert bool(LpBall(norm, eps).contains(x, moved)) == inside


@pytest.mark.parametrize(("norm", "largest"), [("inf", 1), ("2", 1e4), ("1", 1e8)])
def test_eps_lies_between_nothing_and_every_image(norm, largest):
    for allowed in (0, largest / 2, largest):
        assert LpBall(norm, allowed).eps == allowed
    for wrong, message in ((-1e-9, "0 or more"), (largest * 1.01, "covers every image")):
        with pytest.raises(ValueError, match=message):
            LpBall(norm, wrong)
    assert LpBall(norm, largest / 8).scaled(4) == LpBall(norm, largest / 2)


@pytest.mark.parametrize(("norm", "p"), [("inf", float("inf")), ("2", 2), ("1", 1)])
def test_distances_are_torchs_norms_and_slopes_their_duals(norm, p, x):
    threat, other = LpBall(norm, 1), x.flip(0)
    expected = torch.linalg.vector_norm((other.double() - x.double()).flatten(1), ord=p, dim=1)
    assert torch.allclose(threat.distance(x, other), expected, rtol=1e-12)
    assert threat.distance(x, other).dtype == torch.float64
    assert torch.allclose(lp_norm((other - x).flatten(1), norm).double(), expected)
    gradient = sample_streams(2, range(16)).normal(x.shape[1:], at="g", dtype=torch.float64)
    dual = torch.linalg.vector_norm(gradient.flatten(1), ord={"inf": 1, "2": 2, "1": float("inf")}[norm], dim=1)
    assert torch.allclose(threat.slope(gradient), dual)
    step = threat.steepest(gradient)
    assert torch.allclose(torch.linalg.vector_norm(step.flatten(1), ord=p, dim=1), torch.ones(16, dtype=torch.float64))
    if norm != "1":
        assert torch.allclose((step * gradient).flatten(1).sum(1), dual)


def test_the_steepest_step_in_l1_divides_itself_among_a_hundredth():
    gradient = sample_streams(2, range(6)).normal((3, 8, 10), at="g")
    at = torch.full_like(gradient, 0.5)
    at[:3] = (gradient[:3] > 0).float()  # there, nothing can move
    at[3:, 0] = (gradient[3:, 0] > 0).float()
    free = LpBall("1", 1).steepest(gradient)
    held = LpBall("1", 1).steepest(gradient, at)
    assert held[:3].abs().sum() == 0
    assert held[3:, 0].abs().sum() == 0
    for step, allowed in ((free, torch.ones_like(gradient)), (held[3:], (at[3:] == 0.5).float())):
        sizes = (gradient[-len(step) :] * allowed).flatten(1)
        for row, size, flat in zip(step.flatten(1), sizes, gradient[-len(step) :].flatten(1), strict=True):
            chosen = size.abs().argsort(descending=True)[:3]  # of 240
            assert sorted(row.nonzero().flatten().tolist()) == sorted(chosen.tolist())
            assert torch.allclose(row[chosen], flat[chosen].sign() / 3)


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

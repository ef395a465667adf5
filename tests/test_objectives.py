"""Objectives against plain computations of their formulas, in float64."""

import pytest
import torch

from conftest import tiny_vit
from robustvit.attacks import PGD
from robustvit.core.component import build, registered
from robustvit.core.streams import sample_streams
from robustvit.objectives import Adversarial, Standard, Trades
from robustvit.threats import LpBall

THREAT = LpBall("inf", 0.1)
OBJECTIVES = [build("objective", name) for name in registered("objective")]


@pytest.fixture
def batch(digits):
    return digits[0][:12].double(), digits[1][:12], sample_streams(0, range(12))


def log_probabilities(logits):
    return logits - logits.exp().sum(1, keepdim=True).log()


def smoothed_ce(logits, y, smoothing):
    target = torch.full_like(logits, smoothing / logits.shape[1])
    target[torch.arange(len(y)), y] += 1 - smoothing
    return -(target * log_probabilities(logits)).sum(1)


def test_standard_and_adversarial_losses(batch):
    x, y, _ = batch
    model = tiny_vit().double()
    x_adv = x.flip(0)
    assert torch.allclose(
        Standard(label_smoothing=0.3).loss(model, x, x, y).total, smoothed_ce(model(x), y, 0.3), rtol=1e-12
    )
    losses = Adversarial(label_smoothing=0.1).loss(model, x, x_adv, y)
    assert torch.allclose(losses.total, smoothed_ce(model(x_adv), y, 0.1), rtol=1e-12)
    assert torch.equal(losses.logits, model(x_adv))


def test_trades_loss(batch):
    x, y, _ = batch
    model = tiny_vit().double()
    x_adv = x.flip(0)
    losses = Trades(beta=3, label_smoothing=0.4).loss(model, x, x_adv, y)
    p, q = log_probabilities(model(x)), log_probabilities(model(x_adv))
    expected = smoothed_ce(model(x), y, 0.4) + 3 * (p.exp() * (p - q)).sum(1)
    assert torch.allclose(losses.total, expected, rtol=1e-12)
    # the gradient flows through both terms and both images
    weight = model.backbone.head.weight
    (ours,) = torch.autograd.grad(losses.total.mean(), weight, retain_graph=True)
    (plain,) = torch.autograd.grad(expected.mean(), weight)
    assert torch.allclose(ours, plain, rtol=1e-9)


def test_trades_ascends_the_divergence_with_one_clean_pass(batch):
    x, y, random = batch
    model = tiny_vit().double().train()
    seen = []
    model.register_forward_hook(lambda module, inputs, output: seen.append((module.training, inputs[0].requires_grad)))
    x_adv = Trades(attack=PGD(steps=4, start="uniform")).perturb(model, x, y, THREAT, random=random)
    assert seen == [(False, False)] + [(False, True)] * 4
    assert model.training
    model.eval()
    with torch.no_grad():
        p, q, start = (log_probabilities(model(z)) for z in (x, x_adv, THREAT.random_start(x, random)))
    divergence = (p.exp() * (p - q)).sum(1)
    assert (divergence > (p.exp() * (p - start)).sum(1)).all()
    assert THREAT.contains(x, x_adv).all()


@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda objective: objective.name)
def test_objectives_search_inside_and_leave_the_model_alone(objective, batch):
    x, y, random = batch
    model = tiny_vit(drop_rate=0.3).double().train()
    x_adv = objective.perturb(model, x, y, THREAT, random=random)
    assert THREAT.contains(x, x_adv).all()
    assert all(module.training for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())
    losses = objective.loss(model, x, x_adv, y)
    assert losses.total.shape == (12,)
    losses.total.mean().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_attack_mode_is_a_setting(batch):
    x, y, random = batch
    model = tiny_vit().double().eval()
    modes = []
    model.register_forward_hook(lambda module, inputs, output: modes.append(module.training))
    Adversarial(attack=PGD(steps=2), attack_mode="train").perturb(model, x, y, THREAT, random=random)
    assert modes == [True, True]
    assert not model.training

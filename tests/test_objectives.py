"""Objectives against plain computations of their formulas, in float64."""

import pytest
import torch

from conftest import tiny_vit
from robustvit.attacks import PGD
from robustvit.core.component import build, registered
from robustvit.core.errors import UserError
from robustvit.core.streams import sample_streams
from robustvit.objectives import (
    Adversarial,
    Mart,
    RandomDropping,
    Standard,
    TradeOff,
    Trades,
    WeightedSum,
    WeightPerturbation,
)
from robustvit.objectives.base import Perturbed, at, trains_on_attacked
from robustvit.objectives.weighted import Term
from robustvit.threats import LpBall

THREAT = LpBall("inf", 0.1)
OBJECTIVES = [build("objective", name) for name in registered("objective")]


def clean(x):
    return Perturbed(x, attacked=False)


@pytest.fixture
def batch(digits):
    return digits[0][:12].double(), digits[1][:12], sample_streams(0, range(12))


def log_probabilities(logits):
    return logits - logits.exp().sum(1, keepdim=True).log()


def smoothed_ce(logits, y, smoothing):
    target = torch.full_like(logits, smoothing / logits.shape[1])
    target[torch.arange(len(y)), y] += 1 - smoothing
    return -(target * log_probabilities(logits)).sum(1)


@pytest.mark.parametrize(
    "objective",
    [
        *OBJECTIVES,
        RandomDropping(inner=Standard()),
        WeightedSum((Term(Standard()), Term(Mart()))),
        TradeOff(accurate=Adversarial(), robust=Standard()),
        TradeOff(robust_weight=0),
    ],
    ids=lambda one: one.name,
)
def test_what_an_objective_says_of_its_search_is_what_it_does(objective, batch):
    x, y, random = batch
    perturbed = objective.perturb(tiny_vit().double(), x[:2], y[:2], THREAT, random=random[torch.arange(2)])
    assert perturbed.attacked == trains_on_attacked(objective)


def test_a_term_without_weight_is_not_trained_on():
    assert not trains_on_attacked(WeightedSum((Term(Standard()), Term(Trades(), 0))))


def test_standard_and_adversarial_losses(batch):
    x, y, _ = batch
    model = tiny_vit().double()
    x_adv = x.flip(0)
    assert torch.allclose(
        Standard(label_smoothing=0.3).loss(model, x, clean(x), y).total, smoothed_ce(model(x), y, 0.3), rtol=1e-12
    )
    losses = Adversarial(label_smoothing=0.1).loss(model, x, Perturbed(x_adv), y)
    assert torch.allclose(losses.total, smoothed_ce(model(x_adv), y, 0.1), rtol=1e-12)
    assert torch.equal(losses.logits, model(x_adv))


def test_trades_loss(batch):
    x, y, _ = batch
    model = tiny_vit().double()
    x_adv = x.flip(0)
    losses = Trades(beta=3, label_smoothing=0.4).loss(model, x, Perturbed(x_adv), y)
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
    x_adv = Trades(attack=PGD(steps=4, start="uniform")).perturb(model, x, y, THREAT, random=random).x_adv
    assert seen == [(False, False)] + [(False, True)] * 4
    assert model.training
    model.eval()
    with torch.no_grad():
        p, q, start = (log_probabilities(model(z)) for z in (x, x_adv, THREAT.random_start(x, random)))
    divergence = (p.exp() * (p - q)).sum(1)
    assert (divergence > (p.exp() * (p - start)).sum(1)).all()
    assert THREAT.contains(x, x_adv).all()


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_trades_climbs_the_divergence_from_the_clean_distribution_in_the_mode_of_the_attack(mode, batch):
    """Spelled out: sign steps along the gradient of KL(p(x) || p(x_adv)), both passes in the same mode."""
    x, y, random = batch
    model = torch.nn.Sequential(torch.nn.BatchNorm2d(3), torch.nn.Flatten(), torch.nn.Linear(192, 10)).double()
    model[2].weight.data *= 5
    trades = Trades(attack=PGD(steps=3, step=0.04, start="uniform"), attack_mode=mode)
    found = trades.perturb(model, x, y, THREAT, random=random).x_adv
    model.train(mode == "train")
    p, point = log_probabilities(model(x)).detach(), THREAT.random_start(x, random)
    for _ in range(3):
        point.requires_grad_()
        divergence = (p.exp() * (p - log_probabilities(model(point)))).sum()
        (gradient,) = torch.autograd.grad(divergence, point)
        point = torch.clamp(point.detach() + 0.04 * gradient.sign(), x - 0.1, x + 0.1).clamp(0, 1)
    assert torch.allclose(found, point, atol=1e-12)


@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda objective: objective.name)
def test_objectives_search_inside_and_leave_the_model_alone(objective, batch):
    x, y, random = batch
    model = tiny_vit(drop_rate=0.3).double().train()
    perturbed = objective.perturb(model, x, y, THREAT, random=random)
    is_inside = all(THREAT.contains(x, part.x_adv).all() for part in (perturbed, *perturbed.terms))
    assert is_inside == (objective.name != "n_fgsm")
    assert perturbed.attacked != torch.equal(perturbed.x_adv, x)
    assert all(module.training for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())
    losses = objective.loss(model, x, perturbed, y)
    assert losses.total.shape == (12,)
    losses.total.mean().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_n_fgsm_takes_one_step_from_a_noisy_image(batch):
    """x + noise + step sign(gradient at the noisy image), cut with the box alone (de Jorge et al. 2022)."""
    x, y, random = batch
    model = tiny_vit().double()
    found = build("objective", {"name": "n_fgsm", "noise": 3, "step": 0.5}).perturb(model, x, y, THREAT, random=random)
    noisy = x + 0.3 * (2 * random.uniform(x.shape[1:], at="noise", dtype=torch.float64) - 1)
    noisy.requires_grad_()
    (gradient,) = torch.autograd.grad(smoothed_ce(model(noisy), y, 0.0).sum(), noisy)
    assert torch.allclose(found.x_adv, (noisy + 0.05 * gradient.sign()).clamp(0, 1), atol=1e-12)
    assert 0.25 < float((noisy - x).detach().abs().max()) <= 0.3
    with pytest.raises(UserError, match="made for Linf, not L2 1"):
        build("objective", "n_fgsm").perturb(model, x, y, LpBall("2", 1), random=random)


@pytest.mark.parametrize("name", ["adversarial", "n_fgsm", "trades"])
def test_before_its_schedule_begins_there_is_no_search(name, batch):
    x, y, random = batch
    model, objective = tiny_vit().double(), build("objective", name)
    passes = []
    model.register_forward_hook(lambda *call: passes.append(len(x)))
    perturbed = objective.perturb(model, x, y, LpBall("inf", 0), random=random)
    assert (perturbed.x_adv is x, perturbed.attacked, passes) == (True, False, [])
    losses = objective.loss(model, x, perturbed, y)
    assert (losses.clean_logits is losses.logits, len(passes)) == (True, 1)
    assert torch.allclose(losses.total, smoothed_ce(losses.logits, y, 0.0), atol=1e-12)


def test_parameters_need_no_gradient_while_a_model_is_attacked(batch):
    x, y, random = batch
    model = tiny_vit().double()
    model.backbone.head.bias.requires_grad_(False)
    seen = []
    model.register_forward_hook(lambda *call: seen.append(any(p.requires_grad for p in model.parameters())))
    Adversarial(attack=PGD(steps=1)).perturb(model, x, y, THREAT, random=random)
    assert seen == [False]
    assert [name for name, p in model.named_parameters() if not p.requires_grad] == ["backbone.head.bias"]


def test_attack_mode_is_a_setting(batch):
    x, y, random = batch
    model = tiny_vit().double().eval()
    modes = []
    model.register_forward_hook(lambda module, inputs, output: modes.append(module.training))
    Adversarial(attack=PGD(steps=2), attack_mode="train").perturb(model, x, y, THREAT, random=random)
    assert modes == [True, True]
    assert not model.training


def test_batch_statistics_stand_still_while_a_model_is_attacked_in_train_mode(batch):
    x, y, random = batch
    model = torch.nn.Sequential(torch.nn.BatchNorm2d(3), torch.nn.Flatten(), torch.nn.Linear(192, 10)).double()
    statistics = {name: value.clone() for name, value in model.named_buffers()}
    for objective in (Adversarial(attack=PGD(steps=2), attack_mode="train"), Trades(attack_mode="train")):
        objective.perturb(model, x, y, THREAT, random=random)
    assert all(torch.equal(value, statistics[name]) for name, value in model.named_buffers())
    model(x)
    assert not torch.equal(model[0].running_mean, statistics["0.running_mean"])


def test_mart_loss(batch):
    x, y, random = batch
    model = tiny_vit().double()
    x_adv = x.flip(0)
    losses = Mart(beta=5).loss(model, x, Perturbed(x_adv), y)
    p, q = log_probabilities(model(x)).exp(), log_probabilities(model(x_adv)).exp()
    rows = torch.arange(len(y))
    wrong = q.clone()
    wrong[rows, y] = 0
    boosted = -q[rows, y].log() - (1.0001 - wrong.max(1).values + 1e-12).log()
    expected = boosted + 5 * (p * (p.log() - q.log())).sum(1) * (1.0000001 - p[rows, y])
    assert torch.allclose(losses.total, expected, rtol=1e-10)
    assert torch.equal(Mart().perturb(model, x[:1], y[:1], THREAT, random=random[[0]]).x_adv,
                       Mart().perturb(model, x, y, THREAT, random=random).x_adv[:1])  # fmt: skip


def test_a_weighted_sum_is_the_sum_of_its_terms_each_on_its_own_images(batch):
    x, y, random = batch
    model = tiny_vit().double()
    strong, weak = Adversarial(attack=PGD(steps=3)), Standard(label_smoothing=0.2)
    both = WeightedSum((Term(weak, 0.1), Term(strong, 0.9)))
    perturbed = both.perturb(model, x, y, THREAT, random=random)
    alone = strong.perturb(model, x, y, THREAT, random=random)
    assert perturbed.attacked
    assert [term.attacked for term in perturbed.terms] == [False, True]
    assert torch.equal(perturbed.terms[0].x_adv, x)
    assert torch.equal(perturbed.x_adv, alone.x_adv)
    losses = both.loss(model, x, perturbed, y)
    expected = 0.1 * weak.loss(model, x, clean(x), y).total + 0.9 * strong.loss(model, x, alone, y).total
    assert torch.allclose(losses.total, expected, rtol=1e-12)
    assert torch.equal(losses.logits, model(alone.x_adv))
    assert not WeightedSum((Term(weak),)).perturb(model, x, y, THREAT, random=random).attacked


def test_a_trade_off_weighs_the_robust_and_the_accurate_loss(batch):
    x, y, random = batch
    model = tiny_vit().double()
    robust, accurate = Trades(attack=PGD(steps=2)), Standard(label_smoothing=0.2)
    expected = WeightedSum((Term(robust, 0.9), Term(accurate, 0.1)))
    mixed = TradeOff(robust, accurate, 0.9)
    losses, others = (
        one.loss(model, x, one.perturb(model, x, y, THREAT, random=random), y) for one in (mixed, expected)
    )
    torch.testing.assert_close(losses.total, others.total)
    assert torch.equal(losses.logits, others.logits)
    alone = TradeOff(robust, accurate, 0.0)
    assert not alone.perturb(model, x, y, THREAT, random=random).attacked, "what doesn't count isn't searched for"
    with pytest.raises(ValueError, match="robust_weight"):
        TradeOff(robust_weight=1.1)


def test_random_dropping_warms_up_to_the_bare_search(batch):
    x, y, random = batch
    model = tiny_vit().double()
    bare = Adversarial(attack=PGD(steps=2))
    dropping = RandomDropping(inner=bare, patch_size=2, warmup=0.25)
    assert [at(dropping, progress).keep for progress in (0, 0.125, 0.25, 1)] == [0, 0.5, 1, 1]
    plain = bare.perturb(model, x, y, THREAT, random=random).x_adv
    drawn = torch.get_rng_state()
    assert torch.equal(at(dropping, 0.3).perturb(model, x, y, THREAT, random=random).x_adv, plain)
    assert torch.equal(torch.get_rng_state(), drawn), "with everything kept, nothing is drawn"
    assert not torch.equal(at(dropping, 0.1).perturb(model, x, y, THREAT, random=random).x_adv, plain)
    assert not model.backbone.blocks[0].attn._forward_hooks
    # with nothing kept the gradient of the attention is gone, and with it only that
    nothing = RandomDropping(inner=bare, patches=False, keep=0.0).perturb(model, x, y, THREAT, random=random).x_adv
    assert not torch.equal(nothing, plain)
    # and with every patch masked the model sees clean images: the start stays where it was drawn
    start = THREAT.random_start(x, random)
    assert torch.equal(RandomDropping(inner=bare, keep=0.0).perturb(model, x, y, THREAT, random=random).x_adv, start)


def test_weight_perturbation_moves_each_matrix_by_its_share_and_back(batch):
    x, y, _ = batch
    model = tiny_vit().double().train()
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}

    def loss():
        return Standard().loss(model, x, clean(x), y).total.mean()

    plain = loss()
    gradient = dict(zip(before, torch.autograd.grad(loss(), list(model.parameters())), strict=True))
    with WeightPerturbation(gamma=0.01).around(model, lambda: loss().backward(), 0.0):
        assert loss() > plain
        assert all(parameter.grad is None for parameter in model.parameters())
        for name, parameter in model.named_parameters():
            moved = parameter.detach() - before[name]
            if parameter.ndim > 1 and name.endswith("weight"):
                expected = 0.01 * before[name].norm() * gradient[name] / gradient[name].norm()
                assert torch.allclose(moved, expected, atol=1e-12)
            else:
                assert not moved.any(), name
    assert all(torch.equal(parameter, before[name]) for name, parameter in model.named_parameters())
    with WeightPerturbation(warmup=0.5).around(model, lambda: loss().backward(), 0.4):
        assert all(torch.equal(parameter, before[name]) for name, parameter in model.named_parameters())


class Watching:
    """An inner search that notes what its model is shown, and whether attention passes a gradient."""

    def __init__(self, passes):
        self.passes, self.shown, self.passed = passes, [], []

    def perturb(self, model, x, y, threat, *, random):
        x_adv = (x + 0.01).requires_grad_()
        blocks = [block.attn for block in model.backbone.blocks]
        hooks = [
            block.register_forward_hook(lambda *call: self.passed.append(call[2].requires_grad)) for block in blocks
        ]
        hooks.append(model.register_forward_pre_hook(lambda module, inputs: self.shown.append(inputs[0] - x)))
        for _ in range(self.passes):
            model(x_adv)
        for hook in hooks:
            hook.remove()
        return Perturbed(x_adv)


def test_random_dropping_keeps_with_the_probability_that_it_names(batch):
    x, y, random = batch[0][:2], batch[1][:2], batch[2]
    watching = Watching(200)
    dropping = RandomDropping(patch_size=2, keep=0.8)
    object.__setattr__(dropping, "inner", watching)
    dropping.perturb(tiny_vit().double(), x, y, THREAT, random=random)
    assert len(watching.passed) == 400
    assert sum(watching.passed) / 400 == pytest.approx(0.8, abs=0.08)
    shown = (torch.stack(watching.shown) > 0.005).double()
    assert shown.mean().item() == pytest.approx(0.8, abs=0.03)
    patches = shown.unflatten(4, (4, 2)).unflatten(3, (4, 2))
    assert (patches == patches[..., :1, :, :1]).all(), "a patch is shown whole, in all channels, or not at all"


def test_weight_perturbation_takes_its_gradient_without_touching_running_statistics(batch):
    x, y, _ = batch
    model = torch.nn.Sequential(torch.nn.BatchNorm2d(3), torch.nn.Flatten(), torch.nn.Linear(192, 10)).double()
    statistics = {name: value.clone() for name, value in model.named_buffers()}
    with WeightPerturbation().around(
        model, lambda: Standard().loss(model, x, clean(x), y).total.mean().backward(), 0.0
    ):
        assert all(torch.equal(value, statistics[name]) for name, value in model.named_buffers())
    model(x)
    assert not torch.equal(model[0].running_mean, statistics["0.running_mean"])


def test_weight_perturbation_is_taken_back_when_the_step_fails(batch):
    x, y, _ = batch
    model = tiny_vit().double()
    before = model.backbone.head.weight.detach().clone()
    with (
        pytest.raises(ZeroDivisionError),
        WeightPerturbation().around(model, lambda: Standard().loss(model, x, clean(x), y).total.mean().backward(), 0.0),
    ):
        raise ZeroDivisionError
    assert torch.equal(model.backbone.head.weight, before)

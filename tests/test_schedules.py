"""Schedules, averages, optimizers: functions of progress and of parameters."""

import copy
import itertools

import pytest
import torch

import robustvit as rv
from conftest import tiny_vit
from robustvit.core.component import build, registered
from robustvit.core.errors import UserError
from robustvit.models.normalize import parameter_names
from robustvit.training.optimizer import Ema, Optimizer, parameter_groups
from robustvit.training.schedules import Cosine, CosineWarmup, Linear, LinearWarmup, OneCycle, Stairs, StepDecay

SCHEDULES = [build("schedule", name) for name in registered("schedule")] + [
    Cosine(warmup=0.1, start=0.01, end=0.1),
    LinearWarmup(until=0.3, start=0.5),
    Cosine(warmup=1.0),
    LinearWarmup(until=1),
    LinearWarmup(begin=0.2, until=0.4),
    Linear(warmup=0.2, end=0.1),
    CosineWarmup(until=0.4),
    Cosine(warmup=10 / 110, start=0.01, end=0.1, cooldown=10 / 110),
    OneCycle(warmup=0.3),
]
JUMPING = ("step_decay", "stairs")


@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
def test_schedules_are_continuous_and_stay_between_nothing_and_the_peak(schedule):
    values = [schedule(i / 2000) for i in range(2001)]
    assert all(0 <= value <= 1 for value in values)
    if schedule.name not in JUMPING:
        steepest = 0.06 if schedule.name == "one_cycle" else 0.02
        assert max(abs(a - b) for a, b in itertools.pairwise(values)) < steepest
    assert max(values) == pytest.approx(1, abs=2e-3)


def test_schedule_endpoints():
    cosine = Cosine(warmup="10/110", start=0.01, end=0.1)
    assert cosine(0) == pytest.approx(0.01)
    assert cosine(10 / 110) == pytest.approx(1)
    assert cosine(1) == pytest.approx(0.1)
    assert cosine(0.5 * (1 + 10 / 110)) == pytest.approx(0.55)
    warmup = LinearWarmup(until=0.25)
    assert [warmup(p) for p in (0, 0.125, 0.25, 1)] == [0, 0.5, 1, 1]
    smooth = CosineWarmup(until=0.5, start=0.2)
    assert [round(smooth(p), 12) for p in (0, 0.25, 0.5, 1)] == [0.2, 0.6, 1, 1]


def test_a_cool_down_stays_at_the_end():
    schedule = Cosine(warmup=10 / 110, start=0.01, end=0.1, cooldown=10 / 110)
    assert schedule(100 / 110) == pytest.approx(0.1)
    assert schedule(0.97) == schedule(1) == pytest.approx(0.1)


def test_one_cycle_is_torchs():
    parameter = torch.nn.Parameter(torch.zeros(()))
    optimizer = torch.optim.SGD([parameter], 0.2)
    theirs = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=101, pct_start=0.31, anneal_strategy="cos")
    ours = OneCycle(warmup=0.3)  # torch rises over 0.31 * 101 - 1 of its 100 intervals
    for step in range(101):
        assert 0.2 * ours(step / 100) == pytest.approx(theirs.get_last_lr()[0], rel=0.02, abs=1e-4)
        optimizer.step()
        theirs.step() if step < 100 else None


@pytest.mark.parametrize("schedule", [Cosine(), OneCycle(warmup=0), StepDecay(), LinearWarmup(), CosineWarmup()])
def test_without_a_warm_up_the_peak_comes_first(schedule):
    assert schedule(0) == 1


def test_step_decay_and_stairs_jump_where_they_should():
    decay = StepDecay(every=0.3, warmup=0.05)
    assert [round(decay(epoch / 100), 9) for epoch in (0, 5, 29, 30, 60, 90)] == [0, 1, 1, 0.1, 0.01, 0.001]
    by_epoch = Stairs(count=100, inner=LinearWarmup(until=0.1))
    assert [round(by_epoch(step / 1000), 9) for step in (0, 9, 10, 55, 99, 100, 1000)] == [0, 0, 0.1, 0.5, 0.9, 1, 1]


def test_the_learning_rate_may_follow_the_batch():
    optimizer = Optimizer(lr=5e-4, lr_batch=512)
    assert optimizer.peak(512) == 5e-4
    assert optimizer.peak(1024) == 1e-3
    assert Optimizer(lr=5e-4).peak(1024) == 5e-4


@pytest.mark.parametrize("rule", ["copied", "averaged"])
def test_buffers_of_the_average(rule):
    model = torch.nn.BatchNorm1d(2)
    average = copy.deepcopy(model)
    model.running_mean += 1
    model.num_batches_tracked += 3
    Ema(buffers=rule).update(average, model, 0.75)
    assert average.running_mean.tolist() == ([1.0, 1.0] if rule == "copied" else [0.25, 0.25])
    assert average.num_batches_tracked == 3


def test_the_average_follows_gowals_rule():
    ema = Ema(decay=0.995, warmup=0.025)
    assert [ema.rate(step, 1000) for step in (0, 24, 25, 26)] == [0, 0, 0.1, 2 / 11]
    assert ema.rate(999, 1000) == pytest.approx(975 / 984)
    assert ema.rate(10_000, 100_000) == 0.995
    model, other = tiny_vit(), tiny_vit()
    average = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(1)
    ema.update(average, other, 0.75)
    for mine, theirs in zip(average.parameters(), other.parameters(), strict=True):
        assert torch.allclose(mine, theirs - 0.75, atol=1e-6)


def test_weight_decay_spares_norms_biases_and_positions():
    model = tiny_vit()
    decayed, plain = parameter_groups(model, 0.5)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    spared = {names[id(parameter)] for parameter in plain["params"]}
    assert decayed["weight_decay"] == 0.5
    assert plain["weight_decay"] == 0
    assert "backbone.pos_embed" in spared
    assert all(name in spared for name in names.values() if name.endswith("bias") or ".norm" in name)
    assert not any(name.endswith(("qkv.weight", "head.weight")) for name in spared)
    assert len(spared) + len(decayed["params"]) == len(names)
    groups = Optimizer(weight_decay=0.5).build(model).param_groups
    assert sorted((group["weight_decay"], len(group["params"])) for group in groups) == [
        (0, len(spared)),
        (0.5, len(decayed["params"])),
    ]
    token = rv.create_model("visformer_tiny", num_classes=2)
    assert not any(p is q for q in (token.backbone.pos_embed1,) for p in parameter_groups(token, 1.0)[0]["params"])


def test_linear_up_and_down():
    schedule = Linear(warmup=0.2, start=0.5, end=0.1)
    assert [schedule(progress) for progress in (0, 0.1, 0.2, 0.6, 1)] == pytest.approx([0.5, 0.75, 1, 0.55, 0.1])
    assert Linear()(0.25) == 0.75
    assert Linear(warmup=1)(1) == 1


def test_eps_rises_from_where_it_begins():
    schedule = LinearWarmup(begin=0.2, until=0.4, start=0.1)
    assert [schedule(progress) for progress in (0, 0.2, 0.3, 0.4, 1)] == pytest.approx([0.1, 0.1, 0.55, 1, 1])
    with pytest.raises(ValueError, match="can't begin at 0.5, after it ends"):
        LinearWarmup(begin=0.5, until=0.4)
    jump = LinearWarmup(begin=0.5, until=0.5, start=0.25)
    assert [jump(progress) for progress in (0, 0.49, 0.5, 1)] == [0.25, 0.25, 1, 1]


def test_muon_leaves_to_adamw_what_it_is_not_made_for():
    """A matrix that falls back takes AdamW's step, which is as long in every entry; Muon's has singular values of 1."""
    torch.manual_seed(0)
    model = tiny_vit()
    recipe = Optimizer("muon", lr=0.1, weight_decay=0, fallback=("head.*",), settings={"fallback_lr_scale": 0.01})
    optimizer = recipe.build(model)
    before = {name: parameter.detach().clone() for name, parameter in parameter_names(model)}
    model(torch.rand(4, 3, 8, 8)).square().sum().backward()
    optimizer.step()
    moved = {name: (parameter - before[name]).detach() for name, parameter in parameter_names(model)}
    lengths = moved["head.weight"].abs()
    assert torch.allclose(lengths, lengths.max(), rtol=0.01)
    assert float(lengths.max()) < 0.01
    sizes = torch.linalg.svdvals(moved["blocks.0.mlp.fc1.weight"])
    assert float(sizes.max() / sizes[: len(sizes) // 2].min()) < 2
    with pytest.raises(UserError, match="'adamw' treats every parameter alike"):
        Optimizer("adamw", fallback=("head.*",)).build(model)
    with pytest.raises(UserError, match="'adamw' can't be built here"):
        Optimizer("adamw", settings={"fallback_lr_scale": 0.1}).build(model)
    with pytest.raises(ValueError, match="settings.lr: belongs next to"):
        Optimizer("muon", settings={"lr": 0.1})


def test_kernels_are_fused_where_an_optimizer_has_them():
    model = tiny_vit()
    assert Optimizer("adamw").build(model).defaults["fused"] is True
    assert Optimizer("adamw", settings={"fused": False}).build(model).defaults["fused"] is False
    assert "fused" not in Optimizer("lion").build(model).defaults
    assert Optimizer("sgd").build(model.to("meta")).defaults["fused"] is not True


@pytest.mark.parametrize("opt", ["sgd", "adamw", "lion"])
def test_optimizers_by_name_take_a_step(opt):
    model = tiny_vit()
    optimizer = Optimizer(opt=opt, lr=0.01).build(model)
    before = model.backbone.head.weight.clone()
    model(torch.rand(2, 3, 8, 8)).square().sum().backward()
    optimizer.step()
    assert not torch.equal(model.backbone.head.weight, before)

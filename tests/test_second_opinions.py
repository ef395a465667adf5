"""Foolbox and torchattacks on the same model, images and settings: two images in a hundred may part, lengths by 5 %."""

import copy
import warnings

import pytest
import torch

from robustvit.attacks import MIM, PGD, CarliniWagner, Search
from robustvit.core.streams import sample_streams
from robustvit.losses import is_fooled
from robustvit.threats import LpBall

foolbox = pytest.importorskip("foolbox")
torchattacks = pytest.importorskip("torchattacks")

LINF, L2, WHOLE = LpBall("inf", 0.1), LpBall("2", 0.7), LpBall("2", 100)
STREAMS = sample_streams(0, range(100))


@pytest.fixture
def model(trained):
    return copy.deepcopy(trained)  # the others leave gradients on the weights


@pytest.fixture
def points(model, digits):
    """A hundred images that the model gets right, kept from the box's border, where torchattacks' tanh has no slope."""
    x, y = digits[0] * 0.8 + 0.1, digits[1]
    right = ~is_fooled(model(x), y)
    return x[right][:100], y[right][:100]


def fooled(model, x_adv, y):
    with torch.no_grad():
        return is_fooled(model(x_adv), y)


def agree(model, y, ours, theirs):
    mine, others = fooled(model, ours, y), fooled(model, theirs, y)
    assert 10 < mine.sum() < 90, "both outcomes must occur"
    assert (mine != others).sum() <= 2


def quietly(attack, x, y):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return attack(x, y)


@pytest.mark.parametrize("threat", [LINF, L2], ids=str)
def test_pgd(threat, model, points):
    x, y = points
    steps = PGD(steps=20, step="eps/8", start="none")
    ours = steps(model, x, y, threat, Search(STREAMS))
    options = {"abs_stepsize": threat.eps / 8, "steps": 20, "random_start": False}
    judge = foolbox.attacks.LinfPGD(**options) if threat is LINF else foolbox.attacks.L2PGD(**options)
    agree(model, y, ours, judge.run(foolbox.PyTorchModel(model, bounds=(0, 1)), x, y, epsilon=threat.eps))
    options = {"eps": threat.eps, "alpha": threat.eps / 8, "steps": 20, "random_start": False}
    other = torchattacks.PGD(model, **options) if threat is LINF else torchattacks.PGDL2(model, **options)
    agree(model, y, ours, quietly(other, x, y))


def test_mim(model, points):
    x, y = points
    ours = MIM(steps=10, step="eps/8")(model, x, y, LINF, Search(STREAMS))
    theirs = quietly(torchattacks.MIFGSM(model, eps=LINF.eps, alpha=LINF.eps / 8, steps=10, decay=1.0), x, y)
    agree(model, y, ours, theirs)
    assert ((ours - theirs).abs().flatten(1).amax(1) < 1e-6).sum() >= 98, "step by step the same walk"
    # foolbox sums the gradients as they are, not scaled to one length
    judge = foolbox.attacks.LinfMomentumIterativeFastGradientMethod(abs_stepsize=LINF.eps / 8, steps=10)
    agree(model, y, ours, judge.run(foolbox.PyTorchModel(model, bounds=(0, 1)), x, y, epsilon=LINF.eps))


def lengths_agree(model, x, y, ours, theirs):
    mine, others = fooled(model, ours, y), fooled(model, theirs, y)
    assert mine.sum() > 90
    assert (mine != others).sum() <= 2
    both = mine & others
    ours, theirs = ((x_adv - x)[both].flatten(1).norm(dim=1) for x_adv in (ours, theirs))
    assert ours.median().item() == pytest.approx(theirs.median().item(), rel=0.05)
    assert ours.mean().item() == pytest.approx(theirs.mean().item(), rel=0.05)


def test_carlini_wagner_with_binary_search(model, points):
    x, y = points
    ours = CarliniWagner(steps=150, rounds=6, c=0.01, rate=0.05)(model, x, y, WHOLE, Search(STREAMS))
    judge = foolbox.attacks.L2CarliniWagnerAttack(
        binary_search_steps=6, steps=150, stepsize=0.05, initial_const=0.01, abort_early=False
    )
    theirs = judge.run(foolbox.PyTorchModel(model, bounds=(0, 1)), x, y)
    lengths_agree(model, x, y, ours, theirs)


def test_carlini_wagner_with_a_fixed_constant(model, points):
    x, y = points
    ours = CarliniWagner(steps=150, rounds=1, c=2.0, rate=0.02)(model, x, y, WHOLE, Search(STREAMS))
    theirs = quietly(torchattacks.CW(model, c=2.0, kappa=0, steps=150, lr=0.02), x, y)
    lengths_agree(model, x, y, ours, theirs)

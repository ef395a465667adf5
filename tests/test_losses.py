"""Losses against plain formulas, in float64."""

import math

import pytest
import torch

from robustvit.core.errors import UserError
from robustvit.core.streams import sample_streams
from robustvit.losses import (
    ATTACK_LOSSES,
    boosted_cross_entropy,
    cross_entropy,
    dlr,
    is_correct,
    is_fooled,
    kl_divergence,
    margin,
    predicted_classes,
    probability_margin,
    targeted_dlr,
)

LOGITS = sample_streams(0, range(6)).normal((5,), at="a", dtype=torch.float64) * 3
OTHERS = sample_streams(0, range(6)).normal((5,), at="b", dtype=torch.float64) * 3
Y = torch.tensor([0, 1, 2, 3, 4, 0])


def probabilities(row):
    exps = [math.exp(v) for v in row]
    return [e / sum(exps) for e in exps]


def test_cross_entropy():
    expected = [-math.log(probabilities(row)[y]) for row, y in zip(LOGITS.tolist(), Y.tolist(), strict=True)]
    assert cross_entropy(LOGITS, Y).tolist() == pytest.approx(expected, rel=1e-12)


def test_label_smoothing_spreads_over_all_classes():
    expected = []
    for row, y in zip(LOGITS.tolist(), Y.tolist(), strict=True):
        p = probabilities(row)
        expected.append(-sum((0.4 / 5 + (0.6 if k == y else 0)) * math.log(p[k]) for k in range(5)))
    assert cross_entropy(LOGITS, Y, 0.4).tolist() == pytest.approx(expected, rel=1e-12)


def test_margin():
    expected = [
        max(v for k, v in enumerate(row) if k != y) - row[y] for row, y in zip(LOGITS.tolist(), Y.tolist(), strict=True)
    ]
    assert margin(LOGITS, Y).tolist() == pytest.approx(expected, rel=1e-12)
    with pytest.raises(UserError, match="class indices"):
        margin(LOGITS, torch.eye(6, 5))


def test_kl_is_from_the_clean_to_the_attacked_distribution():
    expected = []
    for adv, nat in zip(LOGITS.tolist(), OTHERS.tolist(), strict=True):
        p, q = probabilities(nat), probabilities(adv)
        expected.append(sum(p[k] * (math.log(p[k]) - math.log(q[k])) for k in range(5)))
    assert kl_divergence(LOGITS, OTHERS).tolist() == pytest.approx(expected, rel=1e-10)
    assert kl_divergence(LOGITS, LOGITS).abs().max() < 1e-12


def test_kl_survives_a_softmax_that_underflows():
    hard = torch.tensor([[1000.0, 0.0, -1000.0]])
    assert torch.isfinite(kl_divergence(hard, hard.flip(1))).all()


@pytest.mark.parametrize("name", ATTACK_LOSSES)
def test_attack_losses_are_per_sample_and_rise_when_the_true_logit_falls(name):
    lower = LOGITS.clone()
    lower[torch.arange(6), Y] -= 1
    assert ATTACK_LOSSES[name](LOGITS, Y).shape == (6,)
    assert (ATTACK_LOSSES[name](lower, Y) > ATTACK_LOSSES[name](LOGITS, Y)).all()


def test_logits_that_are_not_finite_fool_nobody():
    logits = torch.tensor([[0.0, 1.0], [1.0, 0.0], [float("nan"), 1.0], [0.0, float("inf")]])
    assert is_fooled(logits, torch.zeros(4, dtype=torch.long)).tolist() == [True, False, False, False]
    assert is_correct(logits, torch.tensor([1, 0, 1, 1])).tolist() == [True, True, False, False]
    assert predicted_classes(logits).tolist() == [1, 0, -1, -1]
    assert not is_correct(logits, torch.zeros(4, dtype=torch.long))[0]


def test_dlr_needs_three_classes_and_four_with_a_target():
    y = torch.tensor([0, 1])
    for classes, loss in ((3, dlr), (4, lambda logits, y: targeted_dlr(logits, y, y + 1))):
        logits = torch.arange(2.0 * classes).view(2, classes) ** 2
        assert torch.isfinite(loss(logits, y)).all()
        with pytest.raises(UserError, match=f"at least {classes} classes, the model has {classes - 1}"):
            loss(logits[:, 1:], y)
    with pytest.raises(UserError, match="DLR loss needs class indices"):
        dlr(LOGITS, torch.eye(6, 5))


def test_the_boosted_term_of_mart_is_that_of_its_code():
    expected = []
    for row, y in zip(LOGITS.tolist(), Y.tolist(), strict=True):
        p = probabilities(row)
        expected.append(-math.log(p[y]) - math.log(1.0001 - max(v for k, v in enumerate(p) if k != y) + 1e-12))
    assert boosted_cross_entropy(LOGITS, Y).tolist() == pytest.approx(expected, rel=1e-12)
    with pytest.raises(UserError, match="MART needs class indices"):
        boosted_cross_entropy(LOGITS, torch.eye(6, 5))


def test_the_probability_margin():
    expected = []
    for row, y in zip(LOGITS.tolist(), Y.tolist(), strict=True):
        p = probabilities(row)
        expected.append(max(v for k, v in enumerate(p) if k != y) - p[y])
    assert probability_margin(LOGITS, Y).tolist() == pytest.approx(expected, rel=1e-12)

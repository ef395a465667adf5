"""Whether other classifiers see something in perturbations."""

import numpy as np
import pytest
import torch

import robustvit as rv
from conftest import linear_digits, tiny_vit
from robustvit.analysis import SemanticPerturbations, analyze
from robustvit.analysis.judges import in_top
from robustvit.analysis.semantic_perturbations import _as_picture, _other_rows
from robustvit.attacks import FGSM, PGD
from robustvit.core.errors import UserError

THREAT = rv.LpBall("inf", 0.1)
OPTIONS = {"images": 40, "quiet": True, "threat": THREAT}


def test_hits_are_those_of_the_judge_on_the_scaled_perturbations(trained, digits):
    judge = linear_digits()
    given = (digits[0][:40], digits[1][:40])
    what = SemanticPerturbations(classifiers=(judge,), attack=PGD(3, start="none"), top=1, shown=3)
    (found,) = analyze(trained, given, what=what, batch_size=13, **OPTIONS)
    x, y = given
    seen = ((PGD(3, start="none")(trained, x, y, THREAT) - x + 0.1) / 0.2).clamp(0, 1)
    expected = (judge(seen).argmax(1) == y).long().numpy()
    assert (found.arrays["hits"][0, 0] != expected).sum() <= 1  # rounding of another batch
    np.testing.assert_array_equal(found.arrays["hits"][0, 3], (judge(x).argmax(1) == y).long().numpy())
    np.testing.assert_allclose(found.arrays["pictures"][:, 1], seen[:3].numpy(), atol=1e-4)
    assert found.charts[0].in_percent
    assert found.charts[0].lines[0].ys == (found.arrays["hits"][0, 0].mean(),)
    assert found.tables[0].rows[0][1] == f"{100 * found.arrays['hits'][0, 0].mean():.1f} %"


def test_labels_of_others_are_never_an_images_own():
    for total in (2, 3, 50):
        others = _other_rows(total, 0)
        assert sorted(others.tolist()) == list(range(total))
        assert (others != torch.arange(total)).all()


def test_in_l2_a_perturbation_fills_the_range_of_each_image():
    delta = torch.randn(5, 3, 8, 8) * torch.tensor([0.01, 0.1, 1, 2, 0]).view(5, 1, 1, 1)
    seen = _as_picture(delta, rv.LpBall("2", 0.5))
    assert (seen[4] == 0.5).all()
    for image, change in zip(seen[:4], delta, strict=False):
        assert float((image - 0.5).abs().max()) == pytest.approx(0.5)
        torch.testing.assert_close(image - 0.5, 0.5 * change / change.abs().max())


def test_a_label_is_among_the_first_so_often_as_chance_says():
    logits = torch.randn(4000, 10)
    judge = torch.nn.Identity()
    y = torch.randint(0, 10, (4000,))
    assert in_top(judge, logits, y, 1).tolist() == (logits.argmax(1) == y).long().tolist()
    assert in_top(judge, logits, y, 5).mean() == pytest.approx(0.5, abs=0.03)
    assert in_top(judge, torch.full((1, 3), torch.nan), torch.zeros(1, dtype=torch.long), 2).tolist() == [0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "at least one other model"),
        ({"classifiers": (tiny_vit(),)}, "is the attacked model"),
        ({"classifiers": (tiny_vit(num_classes=7),)}, "has 7 classes, not 10"),
        ({"classifiers": (tiny_vit(depth=1),), "top": 10}, "below the number of classes"),
    ],
)
def test_what_cannot_be_judged_is_refused(vit, settings, message):
    with pytest.raises(UserError, match=message):
        analyze(vit, "digits", what=SemanticPerturbations(attack=FGSM(), **settings), **OPTIONS)


def test_on_adversarial_images_their_perturbations_are_judged(trained, digits):
    given = (digits[0][:20], digits[1][:20])
    judge = (linear_digits(),)
    used, unused = (SemanticPerturbations(classifiers=judge, attack=attack, top=1) for attack in (FGSM(), PGD(1)))
    (found,) = analyze(trained, given, what=unused, on="fgsm", **OPTIONS)
    (expected,) = analyze(trained, given, what=used, **OPTIONS)
    np.testing.assert_array_equal(found.arrays["hits"], expected.arrays["hits"])
    np.testing.assert_allclose(found.arrays["pictures"], expected.arrays["pictures"], atol=1e-5)

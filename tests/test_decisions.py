"""Distances to the boundary, confusion, and the loss around an image, where they are known."""

import numpy as np
import pytest
import torch
from torch import nn

import robustvit as rv
from robustvit.analysis import Boundary, LossSurface, analyze
from robustvit.losses import cross_entropy

THREAT = rv.LpBall("inf", 0.1)


class Bright(nn.Module):
    """Class 1 if the mean of the image is above a half: the boundary is known."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(20.0))

    def forward(self, x):
        lead = self.scale * (x.flatten(1).mean(1) - 0.5)
        return torch.stack([-lead, lead], 1)


def test_the_distance_to_a_known_boundary_is_found():
    levels = torch.tensor([0.2, 0.45, 0.5 + 1e-3, 0.7, 0.9, 0.3])
    x, y = levels[:, None, None, None].expand(6, 3, 4, 4).clone(), (levels > 0.5).long()
    y[-1] = 1  # wrong as it is
    (finding,) = analyze(Bright(), (x, y), what=Boundary(shown=2), threat=THREAT, quiet=True)
    expected = (levels - 0.5).abs().numpy()
    expected[-1] = 0
    np.testing.assert_allclose(finding.arrays["distance"], expected, rtol=0.02, atol=2e-4)
    cells = dict(finding.tables[0].rows)
    assert cells["wrong as they are"] == "16.7 %"
    assert cells["boundary within Linf 0.1"] == "50.0 %"
    ends = finding.arrays["ends"]
    assert ends[0, 0, 0, 0, 0] == pytest.approx(0.501, abs=1e-6)
    assert ends[0, 1, 0, 0, 0] == pytest.approx(0.9)
    margin = torch.tanh(20 * (levels - 0.5)).abs().numpy() * np.where(np.arange(6) == 5, -1, 1)
    np.testing.assert_allclose(finding.arrays["margin"], margin, atol=1e-5)


def test_no_more_images_are_near_the_boundary_than_an_attack_fools(trained):
    options = {"images": 24, "quiet": True, "threat": THREAT}
    (finding,) = analyze(trained, "digits", what=Boundary(), **options)
    robust = rv.evaluate(trained, "digits", suite="pgd-50x5", **options).robust_accuracy
    farther = float((finding.arrays["distance"] > THREAT.eps).mean())
    assert abs(farther - robust) <= 2 / 24
    (finding,) = analyze(trained, "digits", what=Boundary(), on="fgsm", **options)
    left = rv.evaluate(trained, "digits", suite="fgsm", **options).robust_accuracy
    assert float((finding.arrays["distance"] > 0).mean()) == left, "an image that is fooled lies beyond the boundary"


def test_the_confusion_matrix_counts_what_is_predicted(trained):
    x, y = rv.load_data("digits", 100)
    (finding,) = analyze(trained, "digits", what="confusion", images=100, quiet=True)
    predicted = trained(x).argmax(1)
    for true in range(10):
        of = y == true
        for guess in range(10):
            assert finding.arrays["counts"][true, guess] == int((of & (predicted == guess)).sum())
        if of.any():
            expected = float((predicted[of] == true).float().mean())
            assert finding.arrays["confusion"][true, true] == pytest.approx(expected)
    (attacked,) = analyze(trained, "digits", what="confusion", on="pgd-5", threat=THREAT, images=100, quiet=True)
    robust = rv.evaluate(trained, "digits", suite="pgd-5", threat=THREAT, images=100, quiet=True)
    assert int(np.trace(attacked.arrays["counts"])) == int(robust.is_robust.sum())


def test_the_surface_is_the_loss_at_its_points(trained):
    what = LossSurface(shown=2, points=5, reach=1.0)
    (finding,) = analyze(trained, "digits", what=what, threat=THREAT, images=6, quiet=True)
    x, y = rv.load_data("digits", 6)
    for image, surface in enumerate(finding.arrays.values()):
        loss = float(cross_entropy(trained(x[image : image + 1]), y[image : image + 1]))
        assert surface[2, 2] == pytest.approx(loss, abs=1e-5)
        assert surface[4, 2] > loss  # up along the gradient
        assert surface[0, 2] < surface[4, 2]

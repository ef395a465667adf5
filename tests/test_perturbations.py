"""What an attack adds, and where it changes."""

import numpy as np
import pytest
import torch

import robustvit as rv
from robustvit.analysis import Perturbations, analyze
from robustvit.analysis.perturbations import as_picture, change_by_offset
from robustvit.attacks import FGSM, PGD
from robustvit.core.errors import UserError

THREAT = rv.LpBall("inf", 0.1)
OPTIONS = {"images": 10, "quiet": True, "threat": THREAT}


def blocks(side, shift=0):
    """Random values that are constant within squares of a grid."""
    coarse = torch.rand(2, 3, 6, 6).repeat_interleave(side, 2).repeat_interleave(side, 3)
    return coarse.roll((shift, shift), (2, 3))[:, :, side : 5 * side, side : 5 * side]


@pytest.mark.parametrize("side", [2, 4])
def test_change_lies_on_the_borders_of_the_grid_that_it_has(side):
    lines = 4 * side - 1  # 3 of them are borders
    on_grid, shifted = change_by_offset(blocks(side), side), change_by_offset(blocks(side, side // 2), side)
    assert (on_grid[:, 1:] == 0).all()
    torch.testing.assert_close(on_grid[:, 0], torch.full((2,), lines / 3, dtype=torch.float64))
    assert (shifted[:, 0] == 0).all()
    torch.testing.assert_close(shifted[:, side // 2], torch.full((2,), lines / 4, dtype=torch.float64))


def test_rows_and_columns_count_alike_and_scale_does_not():
    delta = torch.rand(3, 3, 12, 12)
    change = change_by_offset(delta, 4)
    torch.testing.assert_close(change_by_offset(delta.transpose(2, 3), 4), change)
    torch.testing.assert_close(change_by_offset(-7 * delta, 4), change)
    noise = change_by_offset(torch.rand(200, 3, 32, 32), 4)
    torch.testing.assert_close(noise.mean(0), torch.ones(4, dtype=torch.float64), atol=0.02, rtol=0)
    assert (change_by_offset(torch.zeros(1, 3, 8, 8), 4) == 1).all()


def test_no_change_is_gray():
    assert (as_picture(np.zeros((1, 3, 2, 2)), 0.1) == 0.5).all()
    assert as_picture(np.array([-0.1, 0.1]), 0.1).tolist() == [0, 1]


def test_pictures_are_those_of_the_attack(vit, digits):
    given = (digits[0][:10], digits[1][:10])
    (found,) = analyze(vit, given, what=Perturbations(attack=FGSM(), shown=4), batch_size=9, **OPTIONS)
    x, y = given
    x_adv = FGSM()(vit, x, y, THREAT)
    image, delta, gray, adversarial = np.moveaxis(found.arrays["pictures"], 1, 0)
    np.testing.assert_allclose(adversarial, x_adv[:4].numpy(), atol=1e-6)
    np.testing.assert_allclose(image, x[:4].numpy())
    np.testing.assert_allclose(delta, ((x_adv - x)[:4].numpy() + 0.1) / 0.2, atol=1e-5)
    np.testing.assert_allclose(gray[:, 0], delta.mean(1), atol=1e-6)
    expected = change_by_offset(x_adv - x, 2).numpy()  # patches of 2 pixels
    np.testing.assert_allclose(found.arrays["change"], expected, atol=1e-3)
    rows = {row[0]: row[1:] for row in found.tables[0].rows}
    assert rows["attack"][0] == f"{expected[:, 0].mean():.3f}"
    assert rows["random noise"][0] != rows["attack"][0]


def test_networks_without_patches_are_measured_on_a_grid_that_is_given(trained):
    (found,) = analyze(trained, "digits", what=Perturbations(attack=FGSM()), **OPTIONS)
    assert found.tables == found.charts == ()
    assert "no patches of its own" in found.caption
    (found,) = analyze(trained, "digits", what=Perturbations(attack=FGSM(), patch=4), **OPTIONS)
    assert found.arrays["change"].shape == (10, 4)
    with pytest.raises(UserError, match="below the side of the images"):
        analyze(trained, "digits", what=Perturbations(patch=8), **OPTIONS)
    with pytest.raises(UserError, match="eps above 0"):
        analyze(trained, "digits", what=Perturbations(attack=FGSM(), threat=rv.LpBall("inf", 0.0)), **OPTIONS)


def test_on_adversarial_images_the_perturbation_is_theirs(vit, digits):
    given = (digits[0][:10], digits[1][:10])
    what = Perturbations(attack=PGD(1), shown=4)  # which is not used
    (found,) = analyze(vit, given, what=what, on="fgsm", **OPTIONS)
    (expected,) = analyze(vit, given, what=Perturbations(attack=FGSM(), shown=4), **OPTIONS)
    np.testing.assert_allclose(found.arrays["pictures"], expected.arrays["pictures"], atol=1e-6)
    np.testing.assert_allclose(found.arrays["change"], expected.arrays["change"], atol=1e-6)

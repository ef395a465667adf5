"""Which path gradients take."""

import numpy as np
import pytest
import torch

import robustvit as rv
from robustvit.analysis import GradientPaths, analyze, gradient_paths
from robustvit.analysis.gradient_paths import gradients_stopped, part_through
from robustvit.attacks import FGSM, PGD
from robustvit.core.errors import UserError

THREAT = rv.LpBall("inf", 0.1)
OPTIONS = {"images": 10, "quiet": True, "threat": THREAT}
PARTS = [f"backbone.blocks.{block}.{part}" for block in (0, 1) for part in ("attn", "mlp")]


def gradient(model, x):
    point = x.clone().requires_grad_()
    (found,) = torch.autograd.grad(model(point).square().sum(), point)
    return found


def test_stopped_gradients_change_no_logit_and_leave_the_residual_path(vit, digits):
    x = digits[0][:8]
    before, whole = vit(x), gradient(vit, x)
    with gradients_stopped(vit, PARTS):
        assert torch.equal(vit(x), before)
        residual = gradient(vit, x)
    assert residual.abs().sum() > 0
    assert not torch.equal(residual, whole)
    assert torch.equal(gradient(vit, x), whole)  # nothing is left behind
    with pytest.raises(ZeroDivisionError), gradients_stopped(vit, PARTS):
        raise ZeroDivisionError
    assert not any(module._forward_hooks for module in vit.modules())


def test_without_attention_nothing_passes_through_it(vit, digits):
    with torch.no_grad():
        vit.backbone.blocks[0].attn.proj.weight.zero_()
    (found,) = analyze(vit, "digits", what=GradientPaths(attack=FGSM()), batch_size=9, **OPTIONS)
    through = found.arrays["through"]  # attention of both blocks, then their MLPs
    assert (through[0] == 0).all()
    assert (through[1:] > 0).all()
    assert (found.arrays["agreement"][0] == 1).all()
    assert found.tables[1].rows[0][1] == "0.000"


def test_what_passes_is_the_length_of_what_is_missing():
    whole = torch.tensor([[3.0, 4.0], [0.0, 0.0], [1.0, 0.0]])
    stopped = torch.tensor([[0.0, 4.0], [0.0, 0.0], [1.0, 0.0]])
    np.testing.assert_allclose(part_through(whole, stopped), [0.6, 0, 0])


def test_attacks_without_a_path_are_judged_on_the_model_as_it_is(trained_vit, digits):
    given = (digits[0][:10], digits[1][:10])
    (found,) = analyze(trained_vit, given, what=GradientPaths(attack=PGD(5, start="none")), **OPTIONS)
    x, y = given
    for row, parts in enumerate(([], PARTS[::2], PARTS[1::2], PARTS)):
        with gradients_stopped(trained_vit, parts):
            x_adv = PGD(5, start="none")(trained_vit, x, y, THREAT)
        expected = (trained_vit(x_adv).argmax(1) == y).numpy()
        np.testing.assert_array_equal(found.arrays["correct"][row], expected)
    under_attack, through, _ = found.charts
    assert under_attack.lines[0].ys == tuple(found.arrays["correct"].mean(1))
    assert [line.name for line in through.lines] == ["attention", "mlp"]


def test_on_adversarial_images_the_gradients_are_theirs_and_nothing_is_attacked_again(trained_vit, digits):
    given = (digits[0][:8], digits[1][:8])
    what = GradientPaths(attack=FGSM())
    (found,) = analyze(trained_vit, given, what=what, on="fgsm", **OPTIONS)
    x_adv = FGSM()(trained_vit, *given, THREAT)
    (expected,) = analyze(trained_vit, (x_adv, given[1]), what=what, **OPTIONS)
    np.testing.assert_allclose(found.arrays["through"], expected.arrays["through"], atol=1e-5)
    assert found.arrays["correct"].shape == (0, 8)
    assert [table.title for table in found.tables] == ["Each path"]
    assert len(found.charts) == 2


def test_networks_without_attention_are_refused(trained):
    with pytest.raises(UserError):
        analyze(trained, "digits", what=GradientPaths(attack=FGSM()), **OPTIONS)


def test_on_the_residual_path_alone_the_third_part_of_a_block_passes_no_gradient(monkeypatch):
    settings = {"img_size": 8, "patch_size": 2, "depth": 1, "embed_dim": 32, "num_heads": 2, "num_classes": 10}
    model, stopped = rv.create_model("xcit_nano_12_p8_224", **settings).eval(), []

    def seen(module, names):
        stopped.append({name.rpartition("blocks.0.")[2] for name in names})
        return gradients_stopped(module, names)

    monkeypatch.setattr(gradient_paths, "gradients_stopped", seen)
    analyze(model, "digits", what=GradientPaths(attack=FGSM()), **{**OPTIONS, "images": 4})
    *_, everywhere, attention, mlp, residual = stopped
    assert (everywhere, attention, mlp) == (set(), {"attn"}, {"mlp"})
    assert residual == {"attn", "mlp", "local_mp"}


def test_a_gradient_through_a_part_may_exceed_the_whole():
    """Parts that work against each other are each longer than their sum: no limit cuts the interval."""
    values = np.array([[1.5, 2.5, 3.5]])
    chart = gradient_paths._chart("Gradient through a part", [("attention", 0, "a")], values, False)
    low, high = chart.lines[0].intervals[0]
    assert low < 1 < 2.5 < high
    assert high - 2.5 == pytest.approx(2.5 - low)

"""How strong attacks of few steps are, against long ones."""

import csv
import os
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
import torch

import robustvit as rv
from conftest import tiny_vit
from robustvit.analysis import AttackStrength, LossAlong, LossBySteps, analyze
from robustvit.analysis.attack_losses import loss_chart
from robustvit.analysis.attack_strength import relative_difference
from robustvit.analysis.loss_along import steps_to
from robustvit.attacks import PGD, Restarts, Search
from robustvit.core.errors import UserError
from robustvit.core.streams import sample_streams
from robustvit.losses import cross_entropy
from robustvit.models import save_model

THREAT = rv.LpBall("inf", 0.1)
OPTIONS = {"images": 20, "quiet": True, "threat": THREAT}
PUBLISHED = Path(os.environ.get("ROBUSTVIT_DATA", "nowhere")) / "lists" / "light_recipe"
"""notebooks/data of github.com/dedeswim/vits-robustness-torch."""


def test_an_attack_is_as_strong_as_itself_and_fewer_steps_are_weaker(trained):
    what = AttackStrength(steps=(1, 8, 20), reference=20, seeds=2)
    (found,) = analyze(trained, "digits", what=what, **OPTIONS)
    of_means = found.arrays["relative-of-means"]  # (epochs, seeds, steps)
    assert of_means.shape == (1, 2, 3)
    assert (of_means[..., 2] == 0).all()
    assert (found.arrays["relative"][:, :, 2] == 0).all()
    assert (of_means[..., 0] < of_means[..., 1]).all()
    assert (of_means[..., :2] < 0).all()
    assert found.tables[0].rows[0][-1] == "+0.00 %"
    (steps,) = found.charts
    assert steps.lines[0].ys[0] == pytest.approx(-100 * of_means[0, :, 0].mean())
    low, high = steps.lines[0].intervals[0]
    assert low < steps.lines[0].ys[0] < high  # in percent, so that nothing is cut off at 1


def test_without_room_to_attack_there_is_nothing_to_compare(trained):
    what = AttackStrength(steps=(1, 3), reference=5, seeds=1, threat=rv.LpBall("inf", 0.0))
    with pytest.raises(UserError, match="^attack_strength: needs a threat with an eps above 0"):
        analyze(trained, "digits", what=what, **OPTIONS)


def test_the_loss_is_that_of_the_attack_whatever_the_batches(trained, digits):
    what = AttackStrength(steps=(2,), reference=6, seeds=2)
    (found,) = analyze(trained, (digits[0][:20], digits[1][:20]), what=what, **OPTIONS)
    x, y = digits[0][:20], digits[1][:20]
    for restart in (0, 1):
        random = sample_streams(0, range(20))
        random = random.child("restart", restart) if restart else random
        for column, steps in enumerate((2, 6)):
            x_adv = PGD(steps)(trained, x, y, THREAT, Search(random))
            expected = cross_entropy(trained(x_adv), y).detach().numpy()
            np.testing.assert_allclose(found.arrays["losses"][0, restart, column], expected, rtol=1e-4)
    (small,) = analyze(trained, (digits[0][:20], digits[1][:20]), what=what, batch_size=19, **OPTIONS)
    np.testing.assert_allclose(small.arrays["losses"], found.arrays["losses"], rtol=1e-4)


@pytest.fixture
def run(tmp_path):
    """With the weights of two epochs, of other networks than the last."""
    for epoch in (10, 2):
        model = tiny_vit()
        with torch.no_grad():
            model.backbone.head.weight.mul_(epoch)
        path = tmp_path / "checkpoints" / f"main-epoch-{epoch:04d}.safetensors"
        save_model(model, path, phase="main", epoch=epoch)
    save_model(tiny_vit(), tmp_path / "checkpoints" / "last.safetensors")
    (tmp_path / "recipe.yaml").write_text("name: mine\ndata: digits\nthreat: {norm: inf, eps: 0.1}\n")
    return tmp_path


def test_epochs_are_those_that_a_run_kept(run):
    what = AttackStrength(steps=(1,), reference=3, seeds=1)
    (found,) = analyze(str(run), what=what, run=run, images=8, quiet=True)
    assert [row[0] for row in found.tables[0].rows] == ["main-epoch-0002", "main-epoch-0010"]
    assert found.charts[0].lines[0].xs == (2.0, 10.0)
    (single,) = analyze(rv.load_model(run / "checkpoints" / "main-epoch-0010.safetensors"), "digits", what=what,
                        images=8, quiet=True, threat=THREAT)  # fmt: skip
    np.testing.assert_array_equal(single.arrays["losses"][0], found.arrays["losses"][1])
    (run / "checkpoints" / "main-epoch-0002.safetensors").unlink()
    (after,) = analyze(str(run), what=what, run=run, images=8, quiet=True)  # not what is stored for other epochs
    assert len(after.tables[0].rows) == 1
    save_model(tiny_vit(), run / "checkpoints" / "tuning-epoch-0001.safetensors", phase="tuning", epoch=1)
    with pytest.raises(UserError, match=r"several phases \(main, tuning\)"):
        analyze(str(run), what=what, run=run, images=8, quiet=True)


def test_the_mode_of_the_attack_is_a_setting():
    model = tiny_vit(proj_drop_rate=0.5)
    found = [
        analyze(model, "digits", what=AttackStrength(steps=(1,), reference=3, seeds=1, attack_mode=mode), **OPTIONS)[0]
        for mode in ("eval", "train", "train")
    ]
    first, second, again = (one.arrays["losses"] for one in found)
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(second, again)
    assert not model.training


def test_more_restarts_never_lower_the_best_loss(trained, digits):
    (found,) = analyze(trained, "digits", what=LossBySteps(shown=4, steps=(1, 5, 20), restarts=3), **OPTIONS)
    losses = found.arrays["losses"]  # (images, restarts, steps)
    assert losses.shape == (4, 3, 3)
    assert (np.diff(losses.mean((0, 1))) > 0).all()
    assert len({tuple(one) for one in losses[0]}) == 3
    index = found.arrays["index"]
    x, y = digits[0][index], digits[1][index]
    assert (trained(x).argmax(1) == y).all()
    random = sample_streams(0, torch.from_numpy(index))
    x_adv = Restarts(PGD(5, loss="ce"), 3)(trained, x, y, THREAT, Search(random))
    restarted = cross_entropy(trained(x_adv), y).detach().numpy()
    assert (np.abs(losses[:, :, 1] - restarted[:, None]).min(1) < 1e-4).all()  # one of the same three searches
    assert found.charts[0].lines[0].ranges[2] == pytest.approx((losses[0, :, 2].min(), losses[0, :, 2].max()))
    np.testing.assert_allclose(found.arrays["clean"], cross_entropy(trained(x), y).detach().numpy(), atol=1e-6)


def test_the_loss_along_an_attack_ends_where_the_attack_ends(trained, digits):
    (found,) = analyze(trained, "digits", what=LossAlong(shown=4, steps=6, restarts=2), **OPTIONS)
    losses, index = found.arrays["losses"], found.arrays["index"]
    assert losses.shape == (4, 2, 7)
    x, y = digits[0][index], digits[1][index]
    for steps in (3, 6):
        x_adv = PGD(steps, "0.15*eps")(trained, x, y, THREAT, Search(sample_streams(0, torch.from_numpy(index))))
        np.testing.assert_allclose(losses[:, 0, steps], cross_entropy(trained(x_adv), y).detach().numpy(), rtol=1e-4)
    assert steps_to(np.array([[0.0, 2.0, 3.96, 4.0, 3.99], [1.0, 1.0, 1.0, 1.0, 1.0]]), 0.99).tolist() == [2, 0]


def test_a_model_that_is_never_correct_is_refused(trained, digits):
    wrong = (trained(digits[0][:20]).argmax(1) + 1) % 10
    with pytest.raises(UserError, match="none of 20 images correctly"):
        analyze(trained, (digits[0][:20], wrong), what=LossAlong(steps=1), **OPTIONS)


def published(name):
    if not PUBLISHED.is_dir():
        pytest.skip(f"the published numbers of A Light Recipe are not in {PUBLISHED}")
    with (PUBLISHED / name).open() as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(
    ("name", "first", "last"),
    [
        ("xcit", (-11.232, -6.145, -2.423, -1.026), (-6.760, -3.414, -1.447, -0.784)),
        ("resnet", (-0.683, -0.460, -0.262, -0.149), (-12.700, -8.774, -4.677, -2.495)),
        ("convnext", (-2.648, -1.630, -1.084, -0.697), (-5.656, -2.610, -0.932, -0.441)),
        ("xcit-original", (-3.593, -2.020, -1.033, -0.636), (-71.514, -67.256, -58.594, -40.545)),
    ],
)
def test_attack_strength_of_the_published_losses(name, first, last):
    """Figures 7, 12 and 13: three seeds, every tenth epoch."""
    rows = published(f"attack-effectiveness-{name}.csv")
    losses = {tuple(int(row[key]) for key in ("epoch", "seed", "attack_steps")): float(row["adv_loss"]) for row in rows}
    epochs = sorted({epoch for epoch, _, _ in losses})
    table = np.array([[[losses[e, s, k] for k in (1, 2, 5, 10, 200)] for s in range(3)] for e in epochs])
    percent = 100 * relative_difference(table, table[..., -1:]).mean(1)
    np.testing.assert_allclose(percent[0, :4], first, atol=5e-4)
    np.testing.assert_allclose(percent[-1, :4], last, atol=5e-4)
    assert (percent[:, 4] == 0).all()
    assert (np.diff(percent, axis=1) > 0).all()  # more steps are stronger at every epoch


@pytest.mark.parametrize(("name", "means", "spread"), [
    ("xcit", (0.2452, 0.4988, 0.7933, 0.9217, 0.9302, 0.9316, 0.9316), 0.001231),
    ("resnet", (0.4065, 0.7661, 1.0892, 1.2152, 1.2157, 1.2159, 1.2160), 0.032844),
])  # fmt: skip
def test_loss_by_steps_of_the_published_losses(name, means, spread):
    """Figures 5, 14 and 15: 32 images, 20 starts."""
    points = defaultdict(dict)
    for row in published(f"{name}-robust-99.csv"):
        points[int(row["point"])][int(row["seed"]), int(row["steps"])] = float(row["loss"])
    steps = (1, 5, 10, 50, 100, 200, 500)
    lines = []
    for point, losses in points.items():
        table = np.array([[losses[seed, number] for number in steps] for seed in range(20)])
        lines.append(loss_chart(point, tuple(map(float, steps)), table, "", True).lines[0])
    assert len(lines) == 32
    np.testing.assert_allclose(np.mean([line.ys for line in lines], axis=0), means, atol=5e-5)
    assert max(np.ptp(line.ranges[-1]) for line in lines) == pytest.approx(spread, abs=1e-6)


def test_weights_that_were_asked_for_and_are_not_there(vit):
    with pytest.raises(UserError, match="no weights 'phase-.*': a model alone has no run"):
        analyze(vit, "digits", what=AttackStrength(checkpoints="phase-*"), threat=rv.LpBall("inf", 0.1), quiet=True)

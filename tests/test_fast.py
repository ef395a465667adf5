"""The suite `fast`: gradients on all images, AutoAttack on a sample of the survivors, and what follows from it."""

from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import robustvit as rv
from conftest import linear_digits, tiny_vit
from robustvit.attacks import APGD, PGD
from robustvit.attacks.fab import nearest_boundaries
from robustvit.cli.main import app
from robustvit.cli.table import print_results
from robustvit.core.component import component
from robustvit.core.errors import UserError
from robustvit.core.journal import read_rows
from robustvit.core.numbers import upper_bound
from robustvit.evaluation import Plan, evaluate, evaluate_curve, suite_from
from robustvit.evaluation.plan import Stage
from robustvit.evaluation.sampling import choose_sample
from robustvit.models import save_model

THREAT = rv.LpBall("inf", 0.06)


def shortened(stages):
    return tuple(
        replace(
            stage,
            attack=replace(stage.attack, **({"queries": 20} if stage.attack.name == "square" else {"steps": 4})),
        )
        for stage in stages
    )


def fast(**settings):
    """The same stages with little work in each."""
    suite = suite_from("fast").plan(THREAT)
    return Plan("fast-short", shortened(suite.stages), shortened(suite.sampled), **settings)


def judged(model, data, suite=None, **options):
    return evaluate(model, data, suite=suite or fast(), quiet=True, **{"threat": THREAT, **options})


def test_it_is_what_it_says_and_is_never_called_autoattack():
    suite = suite_from("fast:precision=1/50").plan(THREAT)
    assert suite.name == "fast:precision=1/50"
    assert suite.precision == 0.02
    assert suite.stages[0].attack == APGD(loss="pm")
    assert {stage.attack for stage in suite.stages[1:]} == {APGD(loss="dlr")}
    assert [stage.target_rank for stage in suite.stages[1:]] == list(range(2, len(suite.stages) + 1))
    assert {stage.target_order for stage in suite.stages[1:]} == {"nearest"}
    assert [stage.name for stage in suite.stages] == ["apgd-pm", *(f"apgd-malt/{i}" for i in range(1, 5))]
    assert (suite.stages[0].target_rank, suite.stages[0].target_order) == (None, "ranked")
    assert replace(suite_from("fast"), title=None).plan(THREAT) == replace(suite, name="fast", precision=None)
    whole = suite_from("autoattack").plan(THREAT).stages
    assert [(stage.attack, stage.target_rank) for stage in suite.sampled] == [(s.attack, s.target_rank) for s in whole]
    assert [stage.name for stage in suite.sampled] == [f"sample: {stage.name}" for stage in whole]
    for wrong in ("fast:precision=0", "fast:precision=2", "fast:precision=fine", "fast:targets=3", ["fast", "fgsm"]):
        with pytest.raises(UserError):
            suite_from(wrong)


@pytest.mark.parametrize("threat", [THREAT, rv.LpBall("2", 1)], ids=str)
def test_targets_come_by_the_distance_of_their_boundary(threat, trained, digits):
    x, y = digits[0][:40].double(), digits[1][:40]
    for model in (linear_digits().double(), trained.double()):
        order = nearest_boundaries(model, x, y, threat)
        assert order.shape == (40, 9)
        for row in range(0, 40, 7):
            slopes = torch.autograd.functional.jacobian(
                lambda z, model=model: model(z[None])[0], x[row]
            )  # (10, 3, 8, 8)
            logits = model(x[row : row + 1])[0]
            size = 1 if threat.norm == "inf" else 2
            distance = {
                k: ((logits[y[row]] - logits[k]) / (slopes[k] - slopes[y[row]]).norm(p=size)).item()
                for k in range(10)
                if k != y[row]
            }
            assert order[row].tolist() == sorted(distance, key=distance.get)
    trained.float()
    assert nearest_boundaries(trained, x.float(), y, threat, candidates=3).shape == (40, 3)


def test_a_linear_model_falls_to_the_first_target(digits):
    """Its nearest boundary is known exactly: towards another class nothing is gained."""
    suite = Plan(
        "fast-long",
        suite_from("fast").plan(THREAT).stages,
        shortened(suite_from("fast").plan(THREAT).sampled),
        precision=0.2,
    )
    result = judged(linear_digits(), digits, suite, images=40, threat=rv.LpBall("inf", 0.03))
    assert 0 < result.robust_accuracy < result.clean_accuracy
    assert [attack.num_fooled for attack in result.stages[2:] if not attack.name.startswith("sample")] == [0] * (
        len(suite_from("fast").plan(THREAT).stages) - 2
    )
    assert result.details["bound"]["fooled"] == 0


def test_the_bound_is_clopper_and_pearsons():
    beta = pytest.importorskip("scipy.stats").beta
    for hits, trials in [(0, 1), (0, 59), (1, 59), (5, 186), (58, 59), (40, 1000)]:
        expected = beta.ppf(0.95, hits + 1, trials - hits)
        assert upper_bound(hits, trials) == pytest.approx(expected, rel=1e-6)
    assert upper_bound(0, 59) < 0.05 < upper_bound(0, 58)
    assert upper_bound(3, 3) == 1


def test_the_sample_is_as_large_as_the_precision_needs():
    survivors = list(range(0, 12000, 2))
    one, half = (choose_sample(survivors, 10000, 0, precision) for precision in (0.01, 0.005))
    for sample, precision in ((one, 0.01), (half, 0.005)):
        assert upper_bound(0, len(sample.images)) * 0.6 <= precision
        assert upper_bound(0, len(sample.images) - 1) * 0.6 > precision
        assert set(sample.images) <= set(survivors)
    assert set(one.images) < set(half.images), "more precision only adds"
    assert choose_sample(survivors, 10000, 1, 0.01).images != one.images
    usual = choose_sample(survivors, 10000, 0, None)
    assert usual.precision == pytest.approx(0.0096, abs=1e-4), "half the width of Wilson's interval"
    assert len(choose_sample(survivors[:50], 60, 0, 0.001).images) == 50
    assert choose_sample([], 60, 0, None).images == ()
    assert len(choose_sample(survivors[:50], 100, 0, 0.5).images) == 1, "half of all images is all of the survivors"


def test_the_sample_meets_autoattack_itself(trained, digits):
    """Same draws, same verdicts, so that what the sample says of AutoAttack is true of these images."""
    result = judged(trained, digits, fast(precision=0.04))
    whole = judged(trained, digits, Plan("autoattack-short", shortened(suite_from("autoattack").plan(THREAT).stages)))
    bound = result.details["bound"]
    assert bound["sampled"] < bound["survivors"] == result.is_robust.sum() + bound["fooled"]
    before = result.stages[len(fast().stages) - 1].robust_accuracy
    assert bound["robust_accuracy_at_least"] == pytest.approx(before - bound["at_most"])
    assert bound["robust_accuracy_at_least"] <= whole.robust_accuracy
    assert len(result.stages) == len(fast().stages) + 20
    assert result.stages[-1].robust_accuracy == result.robust_accuracy
    everyone = judged(trained, digits, fast(precision=1e-6))
    assert everyone.details["bound"]["sampled"] == everyone.details["bound"]["survivors"]
    assert everyone.details["bound"]["confidence"] == 1
    took = result.is_robust & ~whole.is_robust
    assert everyone.details["bound"]["fooled"] == took.sum()
    assert everyone.details["bound"]["at_most"] == pytest.approx(took.mean())
    assert np.array_equal(everyone.is_robust, result.is_robust & whole.is_robust), "what fell in the sample fell"


def test_the_bound_holds_where_much_is_left_to_take(trained, digits):
    """Nothing but clean images, and an attack that takes a third of them: at most one sample in 20 may mislead."""
    right = judged(trained, digits, "clean").is_correct
    robust = judged(
        trained, digits, Plan("truth", shortened(suite_from("autoattack").plan(THREAT).stages)[:1])
    ).is_robust
    assert 0.2 < robust.mean() < right.mean() - 0.2
    misled = 0
    for seed in range(400):
        sample = choose_sample(np.flatnonzero(right).tolist(), len(right), seed, 0.08)
        fell = int((~robust[list(sample.images)]).sum())
        misled += right.mean() - upper_bound(fell, len(sample.images)) * right.mean() > robust.mean()
    assert misled <= 400 * 0.05


def test_neither_batches_nor_processes_nor_kills_change_it(trained, digits, tmp_path, in_turn):
    options = {"images": 80, "batch_size": 16}
    whole = judged(trained, digits, **options, run=tmp_path / "whole")
    other = judged(trained, digits, images=80, batch_size=50)
    assert np.array_equal(whole.is_robust, other.is_robust)
    assert whole.details["bound"] == other.details["bound"]

    shared = judged(trained, digits, **options, run=tmp_path / "shared", processes=3)
    assert shared.details["bound"] == whole.details["bound"]
    assert np.array_equal(shared.is_robust, whole.is_robust)
    (ledger,) = (tmp_path / "whole").glob("eval/*/ledger-0.jsonl")
    lines = ledger.read_bytes().splitlines(keepends=True)
    for cut in (10, 100, 200, len(lines) // 2, len(lines) - 3):
        folder = tmp_path / f"cut{cut}" / "eval" / ledger.parent.name
        folder.mkdir(parents=True)
        (folder / "ledger-0.jsonl").write_bytes(b"".join(lines[:cut]))
        resumed = judged(trained, digits, **options, run=tmp_path / f"cut{cut}")
        assert resumed.details["bound"] == whole.details["bound"]
        rows = read_rows(folder / "ledger-0.jsonl")
        assert len(rows) == len({(row["stage"], row["image"]) for row in rows}) == len(lines)
    again = judged(trained, digits, **options, run=tmp_path / "whole")
    assert again.to_dict() == whole.to_dict()


@pytest.mark.parametrize("classes", [2, 3, 5])
def test_few_classes(classes, digits):
    x = digits[0][:30]
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, classes))
    y = model(x).argmax(1)
    result = judged(model, (x, y), threat=rv.LpBall("inf", 0.002))
    targets = [attack for attack in result.stages if attack.name.startswith("apgd-malt")]
    assert len(targets) == min(classes - 1, len(fast().stages) - 1)
    assert result.details["bound"]["survivors"] == result.is_robust.sum() + result.details["bound"]["fooled"]


def test_along_a_curve_and_with_saved_images(trained, digits, tmp_path):
    results = evaluate_curve(
        trained, digits, threats=[THREAT.scaled(0.5), THREAT], suite=fast(), images=60, run=tmp_path, save_images=True,
        quiet=True,
    )  # fmt: skip
    bounds = [result.details["bound"] for result in results]
    assert [bound["survivors"] - bound["fooled"] for bound in bounds] == [one.is_robust.sum() for one in results]
    assert results[1].details["curve"]["carried"] == (results[0].is_correct & ~results[0].is_robust).sum()


def test_people_see_the_bound(tmp_path, monkeypatch, capsys, trained, digits):
    result = judged(trained, digits, fast(precision=0.1), images=100)
    print_results([result])
    assert "AutoAttack would leave at least" in capsys.readouterr().out
    monkeypatch.chdir(tmp_path)
    save_model(tiny_vit(), tmp_path / "vit.safetensors")
    command = ["evaluate", "vit.safetensors", "--data", "digits", "--eps", "0.3", "--images", "30", "--suite"]
    shown = CliRunner().invoke(app, [*command, "fast"])
    assert shown.exit_code == 0, shown.output
    assert "no image was left for the attacks of AutoAttack" in shown.output
    assert CliRunner().invoke(app, [*command, "fast:precision=7"]).exit_code == 2


@component("attack", "test-aims")
class Aims:
    """Fools nothing, and notes what it was aimed at."""

    seen: ClassVar[list] = []

    def __call__(self, model, x, y, threat, search):
        self.seen.append((search.random.ids, search.target))
        return x.clone()


@pytest.mark.parametrize("order", ["nearest", "ranked"])
def test_each_stage_aims_at_the_class_of_its_rank(order, trained, digits):
    """By the distance of its boundary, or by the clean logits; either way the second is the first that is wrong."""
    x, y = digits[0][:40], digits[1][:40]
    Aims.seen.clear()
    stages = tuple(Stage(f"aims/{rank}", Aims(), rank, order) for rank in (2, 3, 5))
    judged(trained, (x, y), Plan("aims", stages), batch_size=16)
    logits = trained(x)
    classes = (
        nearest_boundaries(trained, x, y, THREAT) if order == "nearest" else logits.argsort(1, descending=True)[:, 1:]
    )
    right = (logits.argmax(1) == y).nonzero().squeeze(1)
    batches = len(Aims.seen) // 3
    for number, rank in enumerate((2, 3, 5)):
        ids = torch.cat([ids for ids, _ in Aims.seen[number * batches : (number + 1) * batches]])
        aims = torch.cat([target for _, target in Aims.seen[number * batches : (number + 1) * batches]])
        assert ids.tolist() == right.tolist()
        assert aims.tolist() == classes[right, rank - 2].tolist()


def test_precision_and_bound_are_fractions_of_all_images(trained, digits):
    """Of 360 images about half survive: what may still fall is bounded among them, and counted among all."""
    attack = PGD(steps=2)
    plan = Plan("short", (Stage("pgd", attack),), (Stage("sample: pgd", PGD(steps=3)),), precision=0.05)
    bound = judged(trained, digits, plan).details["bound"]
    survivors, sampled = bound["survivors"], bound["sampled"]
    assert 60 < survivors < 300
    assert 20 < sampled < survivors
    needed = next(n for n in range(1, 360) if upper_bound(0, n) * survivors / 360 <= 0.05)
    assert sampled == needed
    assert bound["at_most"] == pytest.approx(upper_bound(bound["fooled"], sampled) * survivors / 360)
    assert bound["robust_accuracy_at_least"] == pytest.approx(survivors / 360 - bound["at_most"])

"""Several eps in one run: monotone, resumable, and not believed unchecked."""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from typer.testing import CliRunner

import robustvit as rv
from conftest import tiny_vit
from robustvit.attacks import PGD, Square
from robustvit.cli.main import app
from robustvit.core.errors import UserError
from robustvit.core.journal import read_rows
from robustvit.core.streams import seeded_subset
from robustvit.evaluation import Accuracy, Attacked, evaluate, evaluate_curve, open_subject
from robustvit.evaluation.carried import CARRIED, Carried, carried_from, masking_warning
from robustvit.evaluation.ledger import Ledger
from robustvit.models import save_model

SIZES = (0.02, 0.05, 0.1)
THREATS = [rv.LpBall("inf", eps) for eps in SIZES]


def curve(model, data, **options):
    return evaluate_curve(model, data, **{"threats": THREATS, "suite": "pgd-10", "quiet": True, **options})


def test_what_falls_at_a_smaller_eps_counts_at_a_larger_one(trained, digits, tmp_path):
    results = curve(trained, digits, run=tmp_path, threats=THREATS[::-1])
    assert [result.threat.eps for result in results] == list(SIZES), "in ascending order"
    for small, large in pairwise(results):
        assert (large.is_robust <= small.is_robust).all()
        assert large.robust_accuracy < small.robust_accuracy
        assert large.details["curve"]["carried"] == (small.is_correct & ~small.is_robust).sum()
        assert large.warnings == ()
        assert large.details["curve"]["attacked_again"] == min(64, large.details["curve"]["carried"])
    alone = evaluate(trained, digits, suite="pgd-10", threat=THREATS[0], run=tmp_path, quiet=True)
    assert alone.folder == results[0].folder, "the smallest is what it would be alone"
    last = evaluate(trained, digits, suite="pgd-10", threat=THREATS[2], run=tmp_path, quiet=True)
    assert last.folder != results[2].folder, "carried outcomes never answer for a separate evaluation"
    assert abs(int(last.is_robust.sum()) - int(results[2].is_robust.sum())) <= 3
    stored = [json.loads((Path(result.folder) / "result.json").read_text()) for result in results]
    assert [one["threat"]["eps"] for one in stored] == list(SIZES)
    assert "curve" not in stored[0]["details"]
    assert stored[2]["details"]["curve"]["carried_from"] == "0.05"


def test_the_work_is_shared_and_the_ledger_says_so(trained, digits, tmp_path):
    results = curve(trained, digits, run=tmp_path)
    rows = read_rows(Path(results[2].folder) / "ledger-0.jsonl")
    carried = {row["image"] for row in rows if row["stage"] == CARRIED}
    assert all(row["from"] == "0.05" for row in rows if row["stage"] == CARRIED)
    attacked = {row["image"] for row in rows if row["stage"] == "pgd-10"}
    assert carried
    assert not carried & attacked
    again = {row["image"] for row in rows if row["stage"] == "again: pgd-10"}
    assert again <= carried
    assert len(again) == min(64, len(carried))


def test_a_curve_goes_on_where_it_was_and_is_computed_once(trained, digits, tmp_path):
    whole = curve(trained, digits, run=tmp_path / "whole", batch_size=32)
    calls = []
    hook = trained.register_forward_hook(lambda *_: calls.append(1))
    again = curve(trained, digits, run=tmp_path / "whole", batch_size=32)
    hook.remove()
    assert len(calls) == 2 * len(SIZES)
    for one, other in zip(whole, again, strict=True):
        assert one.to_dict() == other.to_dict()
    folder = Path(whole[2].folder)
    lines = (folder / "ledger-0.jsonl").read_bytes().splitlines(keepends=True)
    for cut in (0, 300, 400, 500, len(lines) - 20, len(lines) - 1):
        place = tmp_path / str(cut)
        for one in whole[:2]:
            target = place / "eval" / Path(one.folder).name
            target.mkdir(parents=True)
            for file in Path(one.folder).iterdir():
                (target / file.name).write_bytes(file.read_bytes())
        copy = place / "eval" / folder.name
        copy.mkdir()
        (copy / "ledger-0.jsonl").write_bytes(b"".join(lines[:cut]))
        resumed = curve(trained, digits, run=place, batch_size=32)
        assert np.array_equal(resumed[2].is_robust, whole[2].is_robust)
        rows = read_rows(copy / "ledger-0.jsonl")
        assert len(rows) == len({(row["stage"], row["image"]) for row in rows}) == len(lines)


def test_images_that_fall_only_at_the_smaller_eps_are_reported(trained, digits):
    x, y = digits[0][:120], digits[1][:120]

    def masked(images):  # far from every image it says what it says of the nearest one
        gap, nearest = torch.cdist(images.detach().flatten(1), x.flatten(1), p=float("inf")).min(1)
        return torch.where((gap < 0.06)[:, None], trained(images), trained(x[nearest]))

    options = {"suite": [PGD(steps=3, step="eps", start="none")], "quiet": True}
    options["threats"] = [rv.LpBall("inf", 0.05), rv.LpBall("inf", 0.08)]
    small, large = evaluate_curve(masked, (x, y), **options)
    assert (
        large.details["curve"]["survived_again"]
        == large.details["curve"]["attacked_again"]
        == min(64, large.details["curve"]["carried"])
        > 5
    )
    assert large.robust_accuracy <= small.robust_accuracy, "by construction, which is why it is checked"
    assert any(warning.partition(":")[0] == "gradient-masking" for warning in map(str, large.warnings))
    honest = evaluate_curve(trained, (x, y), **options)[1]
    assert honest.details["curve"]["survived_again"] == 0
    assert honest.warnings == ()


def test_a_result_of_something_else_is_not_carried(trained, digits):
    small = evaluate(trained, digits, suite="pgd-3", threat=THREATS[0], images=40, quiet=True)
    for change, what in [
        ({"suite": "pgd-4"}, "suite"),
        ({"seed": 1}, "seed"),
        ({"images": 50}, "data"),
        ({"threat": rv.LpBall("inf", 0.01)}, "must lie inside"),
        ({"threat": rv.LpBall("2", 1)}, "must lie inside"),
        ({"model": tiny_vit()}, "model"),
    ]:
        options = {"suite": "pgd-3", "threat": THREATS[1], "images": 40, "model": trained, **change}
        with pytest.raises(UserError, match=what):
            evaluate(options.pop("model"), digits, **options, smaller=small, quiet=True)
    with pytest.raises(UserError, match="one norm"):
        evaluate_curve(trained, digits, threats=[rv.LpBall("inf", 0.1), rv.LpBall("2", 1)])


def test_only_attacks_have_curves(trained, digits):
    options = {"images": 16, "quiet": True}
    for suite in ("accuracy", Accuracy()):
        with pytest.raises(UserError, match="several eps make a curve of attacks"):
            evaluate_curve(trained, digits, threats=THREATS[:2], suite=suite, **options)
        (result,) = evaluate_curve(trained, digits, threats=THREATS[:1], suite=suite, **options)
        assert result.kind == "accuracy"
    (same,) = evaluate_curve(trained, digits, threats=[THREATS[1], THREATS[1]], suite="fgsm", **options)
    assert same.threat.eps == SIZES[1]
    for wrong in ([], [None, THREATS[0]], ["inf"]):
        with pytest.raises(UserError, match="^threats: "):
            evaluate_curve(trained, digits, threats=wrong, suite="fgsm", **options)


def test_a_threat_is_given_once_or_twice_the_same(trained, digits):
    options = {"images": 16, "quiet": True}
    for given in (None, THREATS[1]):
        result = evaluate(trained, digits, suite=Attacked(threat=THREATS[1], suite="fgsm"), threat=given, **options)
        assert result.threat.eps == SIZES[1]
    with pytest.raises(UserError, match="the evaluator has Linf 0.05 already, not Linf 0.1"):
        evaluate(trained, digits, suite=Attacked(threat=THREATS[1], suite="fgsm"), threat=THREATS[2], **options)
    assert evaluate(trained, digits, suite=Accuracy(), threat=THREATS[1], **options).kind == "accuracy"
    assert evaluate(trained, digits, suite={"name": "attacked", "suite": "fgsm"}, threat=THREATS[2], **options).threat
    for suite in ("fgsm", {"name": "attacked", "suite": "fgsm"}):
        with pytest.raises(UserError, match="how large a change is allowed"):
            evaluate(trained, digits, suite=suite, **options)


def test_processes_share_what_is_carried(trained, digits, tmp_path):
    options = {"images": 60, "suite": ["fgsm", Square(queries=20)], "quiet": True}
    small = evaluate(trained, digits, threat=THREATS[1], **options)
    options = {**options, "smaller": small, "threat": THREATS[2]}
    one = evaluate(trained, digits, **options)
    two = evaluate(trained, digits, **options, run=tmp_path, processes=2)
    assert np.array_equal(one.is_robust, two.is_robust)
    assert one.details["curve"] == two.details["curve"]
    assert one.details["curve"]["carried"] > 0


def test_on_the_command_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    save_model(tiny_vit(), tmp_path / "vit.safetensors")
    command = ["evaluate", "vit.safetensors", "--data", "digits", "--suite", "fgsm", "--images", "40"]
    result = CliRunner().invoke(app, [*command, "--eps", "4/255,1/255,2/255"])
    assert result.exit_code == 0, result.output
    lines = [line for line in result.output.splitlines() if "Linf" in line]
    assert [line.split("Linf ")[1].split()[0] for line in lines] == ["1/255", "2/255", "4/255"]
    assert len(list(tmp_path.glob("runs/*/eval/*/result.json"))) == 3
    assert CliRunner().invoke(app, [*command, "--eps", "4/255,,1/255"]).exit_code == 2


def test_a_ball_lies_inside_itself_and_a_larger_one_does_not(trained, digits):
    options = {"suite": "pgd-2", "images": 40, "quiet": True}
    first = evaluate(trained, digits, threat=rv.LpBall("inf", 0.1), **options)
    again = evaluate(trained, digits, threat=rv.LpBall("inf", 0.1), smaller=first, **options)
    assert np.array_equal(again.is_robust, first.is_robust)
    for threat in (rv.LpBall("inf", 0.09), rv.LpBall("2", 1.0)):
        with pytest.raises(UserError, match="must lie inside"):
            evaluate(trained, digits, threat=threat, smaller=first, **options)


@pytest.mark.parametrize("images", [40, 300])
def test_who_is_carried_and_who_is_attacked_again(images, trained, digits):
    with open_subject(trained, digits, images=images, seed=3).ready() as subject:
        small = evaluate(trained, digits, suite="fgsm", threat=THREATS[2], images=images, seed=3, quiet=True)
        for quantized in (False, True):
            origin = replace(small.provenance, settings={**small.provenance.settings, "quantized": quantized})
            before = replace(small, provenance=origin, details={"curve": {"smaller_eps": [0.01, 0.02]}})
            carried = carried_from(before, subject, "fgsm", rv.LpBall("inf", 0.2), quantized)
            with pytest.raises(UserError, match="another rule on quantized images"):
                carried_from(before, subject, "fgsm", rv.LpBall("inf", 0.2), not quantized)
    fooled = [i for i, right, robust in zip(small.indices, small.is_correct, small.is_robust, strict=True)
              if right and not robust]  # fmt: skip
    count = min(64, len(fooled))
    assert (len(fooled) > 64) == (images == 300)
    assert carried.images == tuple(fooled)
    chosen = seeded_subset(len(fooled), count, 3, "attacked again").tolist()
    assert carried.again == tuple(fooled[i] for i in chosen)
    assert carried.smaller_eps == (0.01, 0.02, 0.1)
    assert carried.facts(5, 2) == {
        "carried_from": "0.1", "carried": 5, "attacked_again": count, "survived_again": 2,
        "smaller_eps": [0.01, 0.02, 0.1],
    }  # fmt: skip


def test_the_ledger_gets_what_it_lacks_of_a_processs_own_images(tmp_path):
    carried, ledger = Carried((1, 4, 6, 9), (4,), (0.01, 0.02, 0.05)), Ledger(tmp_path, 0)
    rows = carried.rows([0, 1, 2, 6], ledger)
    assert rows == [{"stage": CARRIED, "image": image, "outcome": "fooled", "from": "0.05"} for image in (1, 6)]
    ledger.record(rows)
    assert [row["image"] for row in carried.rows(range(10), ledger)] == [4, 9]


@pytest.mark.parametrize("total", [1, 2, 10, 40, 64])
def test_more_survivors_than_by_chance_are_reported(total):
    """As scipy bounds a proportion from below: 2 of 100 verdicts differ by the seed, wrongly reported once in 1000."""
    carried = Carried(tuple(range(total)), tuple(range(total)), (0.05,))
    for survived in range(total + 1):
        low = stats.beta.ppf(0.001, survived, total - survived + 1) if survived else 0.0
        assert len(list(masking_warning(survived, carried, 0.1))) == (low > 0.02)
    assert list(masking_warning(0, Carried((), (), (0.05,)), 0.1)) == []

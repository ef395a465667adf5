"""Analyses: every one finds something it can show, is kept, and isn't made twice; and what each counts is right."""

import json

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import robustvit as rv
from conftest import tiny_vit
from robustvit.analysis import AttentionAttacks, AttentionScores, InputGradients, analyze, read_finding
from robustvit.cli.main import app
from robustvit.core.component import registered
from robustvit.core.errors import UserError
from robustvit.core.figures import Chart
from robustvit.models import save_model
from robustvit.models.attention_probe import ScoreObserver, probing
from test_attention_probe import built
from test_attention_scaling import Picks

THREAT = rv.LpBall("inf", 0.1)
SMALL = {
    "attention_attacks": {"attacks": ("fgsm", "pgd-2"), "attack": "pgd-2"},
    "attack_strength": {"steps": (1, 2), "reference": 4},
    "loss_by_steps": {"steps": (1, 3), "restarts": 2},
    "perturbations": {"attack": "fgsm"},
    "gradient_paths": {"attack": "fgsm"},
    "feature_visualization": {"made": 3, "steps": 3},
    "loss_along": {"steps": 3, "restarts": 2},
}
OTHER_MODELS = {"gates", "learning_curves", "semantic_perturbations"}
"""Analyses that a plain ViT alone has nothing for; they have tests of their own."""
OPTIONS = {"threat": THREAT, "images": 12, "quiet": True}


@pytest.mark.parametrize("name", sorted(set(registered("analysis")) - OTHER_MODELS))
def test_every_analysis_is_kept_read_back_and_shown(name, vit, tmp_path):
    what = {"name": name, **SMALL.get(name, {})}
    (finding,) = analyze(vit, "digits", what=what, run=tmp_path, **OPTIONS)
    assert finding.title
    assert finding.caption.endswith(".")
    assert finding.tables or finding.charts or finding.pictures
    for table in finding.tables:
        assert all(len(row) == len(table.columns) for row in table.rows)
    for line in (line for chart in finding.charts if isinstance(chart, Chart) for line in chart.lines):
        for y, (low, high) in zip(line.ys, line.intervals or line.ranges, strict=bool(line.intervals or line.ranges)):
            assert y is None or low - 1e-9 <= y <= high + 1e-9, (line.name, y, low, high)
    (folder,) = (tmp_path / "analysis").iterdir()
    written = (folder / "finding.json").read_bytes()
    (again,) = analyze(vit, "digits", what=what, run=tmp_path, **OPTIONS)
    assert (folder / "finding.json").read_bytes() == written
    assert (again.title, again.tables, again.charts) == (finding.title, finding.tables, finding.charts)
    assert sorted(again.arrays) == sorted(finding.arrays)
    page = rv.report(tmp_path).read_text()
    assert finding.title in page
    assert all(table.title in page for table in finding.tables)
    json.loads(written)


def test_gaps_are_those_of_the_scores(vit, digits):
    (finding,) = analyze(vit, digits, what=AttentionScores(), **OPTIONS)
    seen = {}

    def look(block, scores, closed):
        assert not closed.any()
        seen.setdefault(block, []).append(scores)

    x = digits[0][torch.from_numpy(rv.evaluate(vit, digits, suite="clean", **OPTIONS).indices)]
    with probing(vit, ScoreObserver(look)), torch.no_grad():
        vit(x)
    top = torch.cat(seen[0]).topk(2, -1).values
    powers = (top[..., 0] - top[..., 1]).log10().flatten()
    np.testing.assert_array_equal(finding.arrays["gaps-as-it-is"][0], np.histogram(powers, finding.arrays["powers"])[0])
    assert len(finding.charts) == len(finding.tables[0].rows) == 2
    assert float(finding.tables[0].rows[0][2]) == pytest.approx(10 ** float(powers.median()), rel=0.2)


def test_pairs_that_a_mask_forbids_are_no_part_of_it():
    model = built("swin").eval()
    x = torch.rand(2, 3, 32, 32)
    forbidden, lowest = {}, {}

    def look(block, scores, closed):
        forbidden[block] = float(closed.float().mean())
        lowest[block] = float((scores.amax(-1) - scores.masked_fill(closed, torch.inf).amin(-1)).amax())

    with probing(model, ScoreObserver(look)), torch.no_grad():
        model(x)
    assert any(forbidden.values())
    assert not all(forbidden.values())
    assert max(lowest.values()) < 50
    (finding,) = analyze(model, (x, torch.zeros(2).long()), what=AttentionScores(), threat=THREAT, quiet=True)
    assert all(row[-3] == "0.0 %" for row in finding.tables[0].rows)


def test_the_smallest_factors_show_in_the_gaps(vit):
    (finding,) = analyze(vit, "digits", what=AttentionScores(factors=1e-7), **OPTIONS)
    plain, scaled = (float(row[2]) for row in finding.tables[0].rows[:2])
    assert scaled == pytest.approx(1e-7 * plain, rel=0.1)


def test_underflow_is_counted_where_there_is_some(tmp_path):
    x = torch.zeros(8, 3, 8, 8)
    x[:, 0, 0, 0] = 1  # the others are 1e5 below: their exponentials are zero
    options = {**OPTIONS, "images": None}
    (finding,) = analyze(Picks(), (x, torch.zeros(8).long()), what=AttentionScores(factors=1e-5), **options)
    by_case = {row[1]: row[-3:] for row in finding.tables[0].rows}
    assert by_case["as it is"] == ("90.0 %",) * 3
    assert by_case["scaled"] == ("0.0 %",) * 3
    (gradients,) = analyze(Picks(), (x, torch.zeros(8).long()), what=InputGradients(factors=1e-5), **options)
    assert [row[1] for row in gradients.tables[0].rows] == ["100.0 %", "0.0 %"]


def test_the_tables_hold_what_evaluations_say(vit):
    what = AttentionAttacks(tables=("attacks", "blocks", "eps", "iterations"), attacks=("pgd-2",), attack="pgd-2",
                            iterations=(1, 2), eps=(0.05,))  # fmt: skip
    (finding,) = analyze(vit, "digits", what=what, **OPTIONS)
    plain = rv.evaluate(vit, "digits", suite="pgd-2", **OPTIONS)
    aas = rv.evaluate(vit, "digits", suite="aas-pgd-2", **OPTIONS)
    clean, row = finding.tables[0].rows
    assert clean == ("no attack", *[f"{100 * plain.clean_accuracy:.1f} %"] * 4, "")
    assert row[1] == f"{100 * plain.robust_accuracy:.1f} %"
    assert row[3] == f"{100 * aas.robust_accuracy:.1f} %"
    assert row[4] == f"{100 * aas.control_result.robust_accuracy:.1f} %"
    assert [len(table.rows) for table in finding.tables] == [2, 2, 2, 2]
    assert all("random factors" in table.columns for table in finding.tables)


def test_under_the_papers_protocol_clean_accuracies_stand_in_the_tables(vit):
    what = AttentionAttacks(tables=("attacks", "criteria"), attacks=("fgsm",), attack="fgsm", judged_on="scaled")
    (finding,) = analyze(vit, "digits", what=what, **OPTIONS)
    assert "the scaled model" in finding.caption
    judged = rv.evaluate(vit, "digits", suite="aas-fgsm:judged_on=scaled", **OPTIONS)
    clean, robust = finding.tables[0].rows
    assert clean[3] == f"{100 * judged.clean_accuracy:.1f} %"
    assert clean[4] == f"{100 * judged.control_result.clean_accuracy:.1f} %"
    assert robust[3] == f"{100 * judged.robust_accuracy:.1f} %"
    assert "plain or AAS" not in finding.tables[0].columns


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"tables": ["iterations"], "attack": "apgd-ce"}, "no number of iterations"),
        ({"tables": []}, "tables: at least one"),
        ({"attack": "pgd"}, "suite 'pgd': how many steps"),
        ({"eps": ["1/0"]}, "eps.0"),
        ({"eps": [3]}, "did you mean 3/255"),
    ],
)
def test_settings_of_the_tables_that_cannot_be_are_reported_before_any_attack(vit, given, message):
    with pytest.raises(UserError, match=message):
        analyze(vit, "digits", what={"name": "attention_attacks", **given}, **OPTIONS)


def test_the_attacks_of_the_tables_may_have_settings(vit):
    given = {"tables": ["iterations", "eps"], "attack": "pgd-2:loss=cw,step=1/255", "iterations": [1], "eps": ["5/255"]}
    (finding,) = analyze(vit, "digits", what={"name": "attention_attacks", **given}, **OPTIONS)
    assert [table.rows[0][0] for table in finding.tables] == ["1", "5/255"]


def test_mistakes_are_reported(vit, trained, tmp_path, monkeypatch):
    with pytest.raises(UserError, match="no attention"):
        analyze(trained, "digits", what="attention_scores", **OPTIONS)
    with pytest.raises(UserError, match="no analysis 'attention'"):
        analyze(vit, "digits", what="attention", **OPTIONS)
    with pytest.raises(UserError, match="at least one"):
        analyze(vit, "digits", what=[], **OPTIONS)
    (tmp_path / "analysis" / "x-1").mkdir(parents=True)
    (tmp_path / "analysis" / "x-1" / "finding.json").write_text('{"title": 3}')
    with pytest.raises(UserError, match="not a whole finding"):
        rv.report(tmp_path)
    with pytest.raises(UserError, match="not a whole finding"):
        read_finding(tmp_path / "analysis" / "x-1")
    monkeypatch.chdir(tmp_path)
    save_model(tiny_vit(), tmp_path / "m.safetensors")
    command = ["analyze", "m.safetensors", "--data", "digits", "--eps", "0.1", "--images", "8", "--what"]
    done = CliRunner().invoke(app, [*command, "attention_scores", "-o", "attention_scores.factors=0.1"])
    assert done.exit_code == 0, done.output
    assert "median gap" in done.output
    for arguments, message in (
        (["nothing"], "no analysis 'nothing'"),
        (["attention_scores", "-o", "attention_scores.factor=2"], "did you mean 'factors'"),
        (["attention_scores", "-o", "attention_scores.factors=none.json"], "no such file"),
    ):
        done = CliRunner().invoke(app, [*command, *arguments])
        assert done.exit_code == 2
        assert message in done.output

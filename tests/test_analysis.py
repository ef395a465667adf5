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
from robustvit.models import save_model
from robustvit.models.attention_probe import probing
from test_attention_scaling import Picks

THREAT = rv.LpBall("inf", 0.1)
SMALL = {"attention_attacks": {"attacks": ("fgsm", "pgd-2"), "attack": "pgd-2"}}
OPTIONS = {"threat": THREAT, "images": 12, "quiet": True}


@pytest.mark.parametrize("name", registered("analysis"))
def test_every_analysis_is_kept_read_back_and_shown(name, vit, tmp_path):
    what = {"name": name, **SMALL.get(name, {})}
    (finding,) = analyze(vit, "digits", what=what, run=tmp_path, **OPTIONS)
    assert finding.title
    assert finding.caption.endswith(".")
    assert finding.tables or finding.charts or finding.pictures
    for table in finding.tables:
        assert all(len(row) == len(table.columns) for row in table.rows)
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

    def look(block, scores):
        seen.setdefault(block, []).append(scores)
        return scores

    x = digits[0][torch.from_numpy(rv.evaluate(vit, digits, suite="clean", **OPTIONS).indices)]
    with probing(vit, look), torch.no_grad():
        vit(x)
    top = torch.cat(seen[0]).topk(2, -1).values
    np.testing.assert_allclose(
        np.sort(finding.arrays["gaps-0-as-it-is"]), np.sort((top[..., 0] - top[..., 1]).flatten())
    )


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
    row = finding.tables[0].rows[0]
    assert row[1] == f"{100 * plain.robust_accuracy:.1f} %"
    assert row[3] == f"{100 * aas.robust_accuracy:.1f} %"
    assert row[4] == f"{100 * aas.attacks[0].robust_accuracy:.1f} %"
    assert [len(table.rows) for table in finding.tables] == [1, 2, 2, 2]
    (judged,) = analyze(vit, "digits", what=AttentionAttacks(tables=("attacks",), attacks=("fgsm",), protocol="paper"),
                        **OPTIONS)  # fmt: skip
    assert "the scaled model" in judged.caption


def test_mistakes_are_told(vit, trained, tmp_path, monkeypatch):
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

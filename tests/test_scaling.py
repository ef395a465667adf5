"""Plots of error against the size of models: slopes, groups, and what is left out of them."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

import robustvit as rv
from conftest import tiny_vit
from robustvit.cli.main import main
from robustvit.core.errors import UserError
from robustvit.core.numbers import fitted_slope
from robustvit.core.result import Measure
from robustvit.core.result_files import write_result
from robustvit.core.run import RunFolder
from robustvit.evaluation import evaluate
from robustvit.models.cost import size_facts
from robustvit.reporting.read import read_runs
from robustvit.reporting.scaling import Point, _error_line, scaling_plots
from robustvit.reporting.tables import data_names
from test_report import Page, make_run, of_weights, result
from test_report_figures import circles, corruptions


def sized(folder: Path, parameters: int | None, error: float, *, name="vit_small", group="", clean=0.9, **changes):
    """A run with one result, of a model of this size."""
    hits = round(360 * (1 - error))
    facts = {} if parameters is None else {"parameters": parameters, "multiply_adds": 100 * parameters}
    outcome = result(
        robust=hits / 360, interval=(max(0, hits / 360 - 0.02), min(1, hits / 360 + 0.02)),
        model={"name": name, **facts}, checkpoint=of_weights(folder.name), **changes,
    )  # fmt: skip
    run = make_run(folder, evaluation=outcome)
    RunFolder(run).write_group(group)
    return run


def plotted(*runs):
    read = read_runs(runs)
    return scaling_plots(read, data_names(read))


def test_the_slope_and_its_interval_are_those_of_a_linear_regression():
    generator = np.random.default_rng(0)
    xs = generator.random(7)
    ys = 2 - 0.3 * xs + 0.05 * generator.normal(size=7)
    expected = stats.linregress(xs, ys)
    slope, intercept, interval = fitted_slope(xs, ys)
    assert (slope, intercept) == pytest.approx((expected.slope, expected.intercept))
    half = stats.t.ppf(0.975, 5) * expected.stderr
    assert interval == pytest.approx((slope - half, slope + half))
    assert fitted_slope(xs[:2], ys[:2])[2] is None


def test_models_on_a_power_law_have_its_slope(tmp_path):
    runs = [sized(tmp_path / f"m{n}", 10**n, 0.8 / 2 ** (n - 5)) for n in (5, 6, 7)]
    scaling = plotted(*runs)
    (clean, robust) = scaling.plots
    assert clean[0] == "Clean accuracy, digits/test, all 360"
    assert robust[0] == "Robust accuracy, pgd-20, Linf 8/255, digits/test, all 360"
    titles = [title for title, *_ in robust[1]]
    assert titles == ["Error against parameters", "Error against multiply-adds of an image", "Accuracy by family"]
    for _, svg, _ in robust[1][:2]:
        assert f"vit, slope {-np.log10(2):.2f} ({-np.log10(2):.2f} to {-np.log10(2):.2f})" in svg
        assert len(circles(svg)) == 3
        assert 'class="fit' in svg
    assert "least squares" in scaling.note
    assert "Left out" not in scaling.note


def test_the_interval_of_an_error_is_that_of_the_accuracy_from_the_other_end():
    measure = Measure("robust_accuracy", 0.6, (0.5, 0.8), kind="accuracy")
    line = _error_line("vit", [(Point("a", "", "vit", {"parameters": 10.0}, measure), 10.0)])
    assert line.ys == pytest.approx((0.4,))
    assert line.intervals[0] == pytest.approx((0.2, 0.5))


def test_a_line_is_a_group_a_family_or_both(tmp_path):
    given = [
        ("a", 10, 0.5, "vit_tiny_patch16_224", ""), ("b", 20, 0.4, "vit_base", ""),
        ("c", 30, 0.3, "resnet50", ""), ("d", 40, 0.2, "resnetv2_50x1_bit", "21k"),
        ("e", 50, 0.2, "vit_large", "JFT"), ("f", 60, 0.1, "swin_tiny", "JFT"),
    ]  # fmt: skip
    runs = [sized(tmp_path / run, size, error, name=name, group=group) for run, size, error, name, group in given]
    _, svg, _ = plotted(*runs).plots[1][1][0]
    names = re.findall(r'<text class="name tone-\d" x="[^"]*" y="[^"]*" text-anchor="start">● ([^<]*)<', svg)
    assert [name.partition(", slope")[0] for name in names] == ["vit", "resnet", "21k", "vit, JFT", "swin, JFT"]
    title, svg, note = plotted(*runs).plots[1][1][2]
    assert title == "Accuracy by group"
    assert "area" in note
    assert [row for row in ("no group", "21k", "JFT") if f">{row}</text>" in svg] == ["no group", "21k", "JFT"]
    radii = dict(re.findall(r"<title>([^<]*)</title><circle [^>]*r=\"([^\"]*)\"", svg))
    assert float(radii["JFT, swin, f: 90 %"]) == pytest.approx(12)
    assert float(radii["no group, resnet, c: 70 %"]) == pytest.approx(12 * np.sqrt(0.5), abs=0.06)
    models = {row[0]: row[1:] for row in plotted(*runs).table.rows}
    assert models["d"] == ("21k", "resnetv2", "40", "4000")


def test_other_benchmarks_have_plots_of_their_own(tmp_path):
    for name, size, accuracy in (("a", 10, 0.5), ("b", 20, 0.7)):
        facts = {"name": "vit", "parameters": size, "multiply_adds": None}
        more = (Measure("fog_accuracy", 0.5, None, "", True, "accuracy"), Measure("drop", 0.25, kind="difference"))
        measures = (Measure("mean_accuracy", accuracy, kind="accuracy"), Measure("mCE", 55.0), *more)
        other = corruptions(accuracy, model=facts, checkpoint=of_weights(name), measures=measures)
        make_run(tmp_path / name, evaluation=other)
    ((title, drawings),) = plotted(tmp_path / "a", tmp_path / "b").plots
    assert title == "Mean accuracy, fog, digits/test, all 360"
    assert [one for one, *_ in drawings] == ["Error against parameters", "Accuracy by family"]
    assert "slope" in drawings[0][1]
    assert " to " not in re.search(r"slope [^<]*", drawings[0][1])[0], "two models have no interval"


def test_the_table_has_every_size_that_is_plotted(tmp_path):
    """A model of two image sizes has two counts of multiply-adds."""
    runs = []
    for name, parameters in (("a", 10), ("b", 20)):
        runs.append(sized(tmp_path / name, parameters, 0.5, name="vit"))
        facts = {"name": "vit", "parameters": parameters, "multiply_adds": 9 * parameters}
        other = corruptions(0.5, model=facts, checkpoint=of_weights(name))
        write_result(RunFolder(runs[-1]).evaluations / "other", other)
    rows = plotted(*runs).table.rows
    assert {(row[0], row[-1]) for row in rows} == {("a", "1000"), ("b", "2000"), ("a", "90"), ("b", "180")}
    assert len(rows) == 4


def test_runs_without_a_size_or_a_result_are_named(tmp_path):
    runs = [sized(tmp_path / name, size, 0.5) for name, size in (("a", 10), ("b", 20), ("old", None))]
    empty = make_run(tmp_path / "empty", rows=[])
    scaling = plotted(*runs, empty)
    assert "Left out: old has results without the size of the model; empty has no results." in scaling.note
    assert len(circles(scaling.plots[1][1][0][1])) == 2
    page = Page(rv.report([*runs, empty], tmp_path / "page.html", scaling=True))
    assert "Left out: old has results" in page.text
    assert "Scaling" not in Page(rv.report([*runs, empty], tmp_path / "page.html")).text


def test_a_model_without_an_error_has_no_place_on_a_logarithmic_axis(tmp_path):
    for name, size, accuracy in (("a", 10, 0.5), ("b", 20, 0.6), ("c", 30, 1.0)):
        facts = {"name": "vit", "parameters": size, "multiply_adds": size}
        measures = (Measure("mean_accuracy", accuracy, kind="accuracy"),)
        make_run(tmp_path / name, evaluation=corruptions(0.5, model=facts, measures=measures))
    title, svg, note = plotted(*(tmp_path / name for name in "abc")).plots[0][1][0]
    assert title == "Error against parameters"
    assert len(circles(svg)) == 2
    assert note == "No error, and so no place here: c."


def test_models_of_one_size_have_no_slope(tmp_path):
    runs = [sized(tmp_path / name, 10, error) for name, error in (("a", 0.5), ("b", 0.4))]
    assert "slope" not in plotted(*runs).plots[1][1][0][1]


@pytest.mark.parametrize("count", [0, 1])
def test_one_model_is_too_few(tmp_path, count, capsys):
    runs = [sized(tmp_path / f"run{n}", 10, 0.5) for n in range(count)] or [sized(tmp_path / "old", None, 0.5)]
    with pytest.raises(UserError, match="needs two models with results of the same suite on the same images"):
        rv.report(runs, scaling=True)
    with pytest.raises(SystemExit) as ended:
        main(["report", *map(str, runs), "--scaling"])
    assert ended.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_models_that_met_other_suites_are_not_compared(tmp_path):
    first = sized(tmp_path / "a", 10, 0.5)
    second = sized(tmp_path / "b", 20, 0.4, title="pgd-50", data_sha256="other")
    with pytest.raises(UserError, match="no two of them were evaluated alike"):
        plotted(first, second)


def test_a_group_is_kept_in_the_folder_of_a_run(tmp_path, capsys):
    runs = [sized(tmp_path / name, size, 0.5) for name, size in (("a", 10), ("b", 20), ("c", 30))]
    with pytest.raises(SystemExit) as ended:
        main(["report", *map(str, runs[:2]), "--group", "ImageNet-21k", "--out", str(tmp_path / "page.html")])
    assert ended.value.code == 0
    assert [run.group for run in read_runs(runs)] == ["ImageNet-21k", "ImageNet-21k", ""]
    rv.report(runs[1], group="")
    assert [run.group for run in read_runs(runs)] == ["ImageNet-21k", "", ""]
    assert not (runs[1] / "group.txt").exists()
    for label in ("two\nlines", " ", "x" * 61):
        with pytest.raises(UserError, match="group: one line of at most 60 letters"):
            rv.report(runs[0], group=label)
    assert read_runs(runs)[0].group == "ImageNet-21k"


@pytest.mark.parametrize("content", [b"", b"a\nb\n", b"\xff\xfe", b"x" * 2000])
def test_a_damaged_group_is_one_clear_error(tmp_path, content):
    run = sized(tmp_path / "run", 10, 0.5)
    (run / "group.txt").write_bytes(content)
    with pytest.raises(UserError, match=r"group\.txt"):
        rv.report(run)


def test_the_group_of_a_recipe_reaches_the_folder_of_its_run(tmp_path):
    recipe = {"overrides": ["epochs=1", "info.group=small"], "quiet": True, "max_steps": 1}
    rv.train("digits/trades", run=tmp_path / "run", **recipe)
    assert RunFolder(tmp_path / "run").read_group() == "small"
    RunFolder(tmp_path / "run").write_group("another")
    rv.train("digits/trades", run=tmp_path / "run", **recipe)
    assert RunFolder(tmp_path / "run").read_group() == "another", "what was given later stays"


def test_a_result_knows_the_size_of_its_model(digits, tmp_path):
    model = tiny_vit()
    data = (digits[0][:16], digits[1][:16])
    made = evaluate(model, data, suite="accuracy", run=tmp_path, quiet=True)
    cost = rv.model_cost(model, 8)
    stored = json.loads((Path(made.folder) / "result.json").read_text())["provenance"]["model"]
    assert (stored["parameters"], stored["multiply_adds"]) == (cost.parameters, cost.multiply_adds)
    assert stored["name"] == "vit_tiny_patch16_224"
    called = evaluate(lambda x: model(x), data, suite="accuracy", quiet=True)
    assert "parameters" not in called.provenance.model


def test_sizes_of_models_that_are_not_square_or_cannot_be_counted():
    class Odd(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Conv2d(3, 5, 3, padding=1, bias=False)

        def forward(self, x):
            if x.shape[2] == 4:
                raise RuntimeError("no")
            return self.layer(x)

    assert size_facts(Odd(), (6, 10)) == {"parameters": 135, "multiply_adds": 135 * 60}
    assert size_facts(Odd(), (4, 4)) == {"parameters": 135, "multiply_adds": None}
    assert size_facts(torch.nn.Flatten(), (4, 4)) == {"parameters": 0, "multiply_adds": None}

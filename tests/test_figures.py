"""Charts and heat maps as plain values: what is written is read back, and parts that do not fit are refused."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from robustvit import evaluate
from robustvit.core.checksum import with_checksum
from robustvit.core.component import component
from robustvit.core.errors import UserError
from robustvit.core.figures import Chart, Fit, Heatmap, Line, Table
from robustvit.core.finding import Finding, read_finding, write_finding
from robustvit.core.result_files import read_result, write_result
from robustvit.evaluation.conditions import Condition, ConditionEvaluator
from test_report import result

HEAT = Heatmap("Transfer", ("a", "b"), ("c", "d", "e"), ((0.1, None, 0.3), (0.4, 0.5, 1.0)), "source", "target")
POINTS = Line(
    "ViT", (1e6, 1e7), (0.5, 0.25), ((0.4, 0.6), (0.2, 0.3)), ranges=((0.3, 0.7), (0.1, 0.4)),
    labels=("Ti", "S"), sizes=(1.0, 10.0), fit=Fit(-0.3, 1.5, (-0.4, -0.2), "least squares"),
)  # fmt: skip
SCATTER = Chart("Scaling", "parameters", (POINTS,), kind="scatter", y_title="error", x_log=True, y_log=True)


def test_figures_of_a_result_are_read_back_as_they_were_written(tmp_path):
    write_result(tmp_path, result(figures=(HEAT, SCATTER)))
    assert read_result(tmp_path).figures == (HEAT, SCATTER)


def test_a_value_that_is_no_number_is_read_back_as_a_gap(tmp_path):
    broken = replace(HEAT, values=((float("nan"), None, float("inf")), (0.4, 0.5, 1.0)))
    write_result(tmp_path, result(figures=(broken,)))
    (read,) = read_result(tmp_path).figures
    assert read == replace(HEAT, values=((None, None, None), (0.4, 0.5, 1.0)))


def test_a_result_that_was_written_before_it_could_have_figures_is_read(tmp_path):
    old = result()
    write_result(tmp_path, old)
    content = {key: value for key, value in old.to_dict().items() if key != "figures"}
    (tmp_path / "result.json").write_text(json.dumps(with_checksum(content, old.outcomes.arrays())))
    assert read_result(tmp_path).figures == ()


def test_a_changed_number_of_a_figure_is_noticed(tmp_path):
    write_result(tmp_path, result(figures=(HEAT,)))
    path = tmp_path / "result.json"
    content = json.loads(path.read_text())
    content["figures"][0]["values"][0][0] = 0.9
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match="checksum differs"):
        read_result(tmp_path)


@pytest.mark.parametrize(
    ("place", "value", "problem"),
    [
        (("rows",), ["a"], "values of another shape than its rows and columns"),
        (("values", 0), [0.1, 0.2], "values of another shape"),
        (("kind",), "pie", "figures.0: Input tag 'pie'"),
        (("scale",), "rainbow", "figures.0.heatmap.scale"),
        (("array",), "matrix", "either values or the name of an array"),
        (("values", 1, 1), "much", "figures.0.heatmap.values.1.1"),
    ],
)
def test_a_damaged_figure_of_a_result_is_one_error(
    tmp_path: Path, place: tuple[Any, ...], value: Any, problem: str
) -> None:
    write_result(tmp_path, result(figures=(HEAT,)))
    path = tmp_path / "result.json"
    content = json.loads(path.read_text())
    inside = content["figures"][0]
    for key in place[:-1]:
        inside = inside[key]
    inside[place[-1]] = value
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match=r"result\.json: not a whole result") as raised:
        read_result(tmp_path)
    assert problem in str(raised.value)


@pytest.mark.parametrize("matrix", [np.eye(25), np.random.default_rng(0).normal(size=(40, 30))])
def test_a_large_matrix_of_a_finding_is_read_back_as_it_was_written(tmp_path, matrix):
    write_finding(tmp_path, Finding("f", "", charts=(Heatmap("m", (), (), array="m"),), arrays={"m": matrix}))
    read = read_finding(tmp_path)
    assert read.charts == (Heatmap("m", (), (), array="m"),)
    assert np.array_equal(read.arrays["m"], matrix)


@pytest.mark.parametrize("arrays", [{}, {"m": np.eye(3)}, {"m": np.eye(2, dtype=int)}, {"m": np.ones(2)}])
def test_a_finding_without_the_matrix_of_a_heat_map_is_refused(tmp_path, arrays):
    chart = Heatmap("m", ("a", "b"), ("c", "d"), array="m")
    write_finding(tmp_path, Finding("f", "", charts=(chart,), arrays=arrays))
    with pytest.raises(UserError, match=r"heat map 'm': arrays\.npz does not hold its matrix"):
        read_finding(tmp_path)


def line(**changes: Any) -> Line:
    return replace(Line("l", (1.0, 2.0), (0.5, None)), **changes)


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: Table("t", ("a",), (("1", "2"),)), "table 't': rows and columns differ"),
        (lambda: Chart("c", "", (line(ys=(1.0,)),)), "another number of values"),
        (lambda: Chart("c", "", (line(intervals=((0.0, 1.0),)),)), "another number of values"),
        (lambda: Chart("c", "", (line(labels=("a",)),)), "another number of values"),
        (lambda: Chart("c", "", (line(ranges=((0.0, 1.0),) * 3),)), "another number of values"),
        (lambda: Chart("c", "", (line(),), kind="dots", rows=("a", "b")), "a dot lies outside"),
        (lambda: Chart("c", "", (line(xs=(0.0, 1.0)),), x_log=True), "place at or below 0"),
        (lambda: Chart("c", "", (line(ys=(0.0, 1.0)),), y_log=True), "value at or below 0"),
        (lambda: Chart("c", "", (line(xs=(1.0, float("nan"))),)), "not finite"),
        (lambda: Chart("c", "", (line(intervals=((0.0, 1.0), (0.0, float("inf")))),)), "not finite"),
        (lambda: Chart("c", "", (line(sizes=(1.0, -1.0)),)), "less than no area"),
        (lambda: Heatmap("h", ("a",), ("b",)), "either values or the name of an array"),
        (lambda: Heatmap("h", ("a",), ("b",), ((1.0,),), limits=(1.0, 1.0)), "limits that grow"),
        (lambda: Heatmap("h", ("a",), ("b",), ((1.0,), (1.0,))), "values of another shape"),
        (lambda: result(figures=(Heatmap("h", (), (), array="m"),)), "a result has no arrays"),
    ],
)
def test_parts_that_do_not_fit_each_other_are_refused(make, problem):
    with pytest.raises(UserError, match=problem):
        make()


@component("evaluator", "pictured")
class Pictured(ConditionEvaluator):
    """One condition, and a heat map of its answers."""

    def list_conditions(self, subject):
        return [Condition("clean")]

    def figures(self, subject, answers):
        (only,) = answers.values()
        return (Heatmap("Answers", ("all",), ("correct",), ((float(only.correct.mean()),),)),)


def test_the_figures_of_an_evaluator_are_in_its_result(trained, digits, tmp_path):
    made = evaluate(trained, digits, suite=Pictured(), run=tmp_path, quiet=True)
    assert made.figures == (Heatmap("Answers", ("all",), ("correct",), ((made.clean_accuracy,),)),)
    assert read_result(Path(made.folder or "")).figures == made.figures

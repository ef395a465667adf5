"""Sweeps of a trade-off: a phase that is trained once, results by head, clean against robust accuracy."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import robustvit as rv
from robustvit.core.config import load_recipe
from robustvit.core.errors import UserError
from robustvit.core.files import write_text
from robustvit.core.run import RunFolder
from robustvit.models import fingerprint, load_model
from robustvit.training import recipe_from
from robustvit.training.sweep import check_sweep, first_folder, first_point, run_sweep, sweep_commands, sweep_finding
from robustvit.training.sweep_grid import Point, sweep_from

TORA_SWEEP = """
name: mine
recipe: digits/tora_joint
first: digits/tora_independent
suite: fgsm
images: 8
heads: [acc, rob, joint]
curve: robust_weight
costs: true
grid:
  model.adapters.softmax: [adapter, per_token]
  objective.robust_weight: [0.1, 0.9]
"""


@pytest.fixture(scope="module")
def trade_off(tmp_path_factory):
    """A sweep of two methods and two weights, whose first phase takes a step or two; its folder, file and outcomes."""
    root = tmp_path_factory.mktemp("trade-off")
    rv.train("digits/standard_token", run=root / "backbone", quiet=True, overrides=["epochs=1", "batch_size=512"])
    write_text(
        root / "phase1.yaml",
        f"""
extends: digits/tora_independent
name: phase1
start: {{weights: {root / "backbone"}}}
batch_size: 512
phases:
  - name: independent
    epochs: 1
    objective: null
    alternate:
      - {{head: rob, objective: adversarial, trainable: ["adapters.*.rob.*", "adapters.*.fusion.*", "heads.rob.*"]}}
      - {{head: acc, objective: standard, trainable: ["adapters.*.acc.*", "adapters.*.fusion.*", "heads.acc.*"]}}
""",
    )
    write_text(
        root / "phase2.yaml",
        """
extends: digits/tora_joint
name: phase2
batch_size: 512
phases: [{name: joint, epochs: 1, trainable: ["adapters.*.fusion.*"]}]
""",
    )
    text = TORA_SWEEP.replace("digits/tora_joint", str(root / "phase2.yaml"))
    write_text(root / "sweep.yaml", text.replace("digits/tora_independent", str(root / "phase1.yaml")))
    sweep = sweep_from(str(root / "sweep.yaml"), [])
    return root, sweep, run_sweep(sweep, root / "runs", quiet=True)


class TestFirst:
    """A recipe that is trained once, before the runs that start from it."""

    def test_it_is_trained_once_for_each_model(self, trade_off):
        root, sweep, results = trade_off
        assert [str(outcome) for _, outcome in results if isinstance(outcome, UserError)] == []
        firsts = sorted((root / "runs").glob("first-*"))
        assert len(firsts) == 2
        for point, _ in results:
            run = RunFolder(root / "runs" / point.folder)
            first = first_folder(root / "runs", first_point(sweep, point))
            assert run.read_recipe()["start"]["weights"] == str(first)
            assert first in firsts
            start = json.loads((run.path / "start.json").read_text())
            assert start["new"] == []

    def test_the_second_phase_moves_the_gate_alone(self, trade_off):
        root, sweep, results = trade_off
        for point, _ in results:
            first = load_model(first_folder(root / "runs", first_point(sweep, point))).backbone.state_dict()
            second = load_model(root / "runs" / point.folder).backbone.state_dict()
            moved = {name for name in first if not torch.equal(first[name], second[name])}
            assert moved
            assert all(".fusion." in name for name in moved)

    def test_both_phases_in_one_run_end_with_the_same_weights(self, trade_off, tmp_path):
        root, _, results = trade_off
        point = results[-1][0]
        one, two = (load_recipe(root / f"phase{number}.yaml") for number in (1, 2))
        recipe = {**two, "name": "whole", "start": one["start"], "phases": [*one["phases"], *two["phases"]]}
        rv.train(recipe, run=tmp_path, quiet=True, overrides=point.overrides)
        assert fingerprint(load_model(tmp_path)) == fingerprint(load_model(root / "runs" / point.folder))

    def test_nothing_is_computed_twice(self, trade_off):
        root, sweep, results = trade_off
        before = {path: path.stat().st_mtime_ns for path in (root / "runs").rglob("*.safetensors")}
        again = run_sweep(sweep, root / "runs", quiet=True)
        assert {path: path.stat().st_mtime_ns for path in (root / "runs").rglob("*.safetensors")} == before
        assert [[one.folder for one in outcome] for _, outcome in again] == [
            [one.folder for one in outcome] for _, outcome in results
        ]

    def test_settings_of_the_whole_recipe_are_shared_and_those_of_phases_are_not(self, trade_off):
        sweep = trade_off[1]
        point = Point({"seed": 3, "model.adapters.softmax": "all", "objective.robust_weight": 0.3, "batch_size": 8,
                       "phases.0.epochs": 2})  # fmt: skip
        assert dict(first_point(sweep, point).settings) == {
            "recipe": sweep.first, "seed": 3, "model.adapters.softmax": "all"
        }  # fmt: skip
        assert first_point(sweep, Point({"first": None})) is None

    def test_points_that_start_from_different_runs_are_different(self):
        sweep = sweep_from("sweeps/digits_finetune", [])
        light, other, scratch = (point.settings for point in sweep.points()[::3])
        assert [light["first"], other["first"]] == ["digits/pretrain_light", "digits/pretrain_canonical"]
        assert len(check_sweep(sweep)) == 9
        with pytest.raises(UserError, match="the same recipe as first=digits/pretrain_light, seed=0"):
            check_sweep(replace(sweep, cases=(*sweep.cases, sweep.cases[0])))
        assert scratch["start"] is None

    def test_printed_commands_train_it_before_the_others(self, trade_off):
        _, sweep, _ = trade_off
        commands = sweep_commands(sweep, Path("r"))
        assert len(commands) == 6
        assert all("phase1.yaml" in command and "first-recipe=" in command for command in commands[:2])
        assert all("start.weights=r/first-recipe=" in command for command in commands[2:])

    def test_one_that_does_not_exist_is_reported_before_the_first_run(self, trade_off, tmp_path):
        sweep = replace(trade_off[1], first="digits/nothing")
        with pytest.raises(UserError, match="no recipe 'digits/nothing'"):
            run_sweep(sweep, tmp_path / "x", quiet=True)
        assert not (tmp_path / "x").exists()

    def test_its_initial_weights_are_tried_before_the_first_run(self, trade_off, tmp_path):
        root, sweep, _ = trade_off
        text = (root / "phase1.yaml").read_text().replace(str(root / "backbone"), str(tmp_path / "nowhere"))
        write_text(tmp_path / "phase1.yaml", text)
        with pytest.raises(UserError, match=r"phase1\.yaml.*: start\.weights: .*nowhere"):
            run_sweep(replace(sweep, first=str(tmp_path / "phase1.yaml")), tmp_path / "runs", quiet=True)
        assert not (tmp_path / "runs").exists()

    def test_its_hours_are_part_of_the_costs(self, trade_off):
        root, sweep, results = trade_off
        file = first_folder(root / "runs", first_point(sweep, results[0][0])) / "cost.json"
        before = file.read_text()
        write_text(file, json.dumps({**json.loads(before), "cpu_seconds": 7200}))
        try:
            (table,) = sweep_finding(sweep, results).tables
        finally:
            write_text(file, before)
        hours = [(row[0], float(row[table.columns.index("CPU hours")])) for row in table.rows]
        assert {softmax for softmax, value in hours if value >= 2} == {"adapter"}
        assert {softmax for softmax, value in hours if value < 1} == {"per_token"}


class TestHeadsAndTradeOff:
    def test_every_head_has_a_row(self, trade_off):
        _, sweep, results = trade_off
        (table,) = sweep_finding(sweep, results).tables
        assert table.columns[:3] == ("model.adapters.softmax", "objective.robust_weight", "head")
        assert [row[2] for row in table.rows] == ["acc", "rob", "joint"] * 4
        assert {"parameters", "multiply-adds", "CPU hours"} <= set(table.columns)
        assert all(len(outcome) == 3 for _, outcome in results)
        heads = [one.provenance.model.get("head", "joint") for one in results[0][1]]
        assert heads == ["acc", "rob", "joint"]

    def test_clean_against_robust_accuracy_is_drawn_with_the_pareto_front(self, trade_off):
        root, sweep, results = trade_off
        chart = sweep_finding(sweep, results).charts[0]
        *curves, front = chart.lines
        assert [line.name for line in curves] == [
            f"softmax={softmax}, head={head}" for softmax in ("adapter", "per_token") for head in sweep.heads
        ]
        assert all(line.labels == ("0.1", "0.9") and line.joined for line in curves)
        joint = [outcome[2] for point, outcome in results if point.settings["model.adapters.softmax"] == "adapter"]
        assert curves[2].xs == tuple(one.clean_accuracy for one in joint)
        assert curves[2].ys == tuple(one.robust_accuracy for one in joint)
        points = {place for line in curves for place in zip(line.xs, line.ys, strict=True)}
        assert set(zip(front.xs, front.ys, strict=True)) <= points
        assert all(any(x >= p[0] and y >= p[1] for x, y in zip(front.xs, front.ys, strict=True)) for p in points)
        page = rv.report([root / "runs" / point.folder for point, _ in results], root / "report.html").read_text()
        assert "Clean against robust accuracy" in page
        assert "Pareto front" in page
        assert "head rob" in page

    def test_a_head_that_the_model_lacks_is_reported_at_once(self, tmp_path):
        file = tmp_path / "s.yaml"
        write_text(file, "name: x\nrecipe: digits/standard\nheads: [acc]\ngrid: {seed: [0, 1]}\n")
        with pytest.raises(UserError, match="head 'acc': .*has one output and no heads"):
            run_sweep(sweep_from(str(file), []), tmp_path / "x", quiet=True)

    def test_a_wrong_name_of_a_head_is_reported_without_data(self):
        sweep = replace(sweep_from("sweeps/tora_lambda_digits", []), heads=("acc", "robb"))
        with pytest.raises(UserError, match="objective.robust_weight=0.1, seed=0: head 'robb': .*did you mean 'rob'"):
            check_sweep(sweep)

    @pytest.mark.parametrize(
        ("change", "problem"),
        [
            ("curve: robust_wieght", "curve: no setting .* is called 'robust_wieght'.*did you mean 'robust_weight'"),
            ("heads: [acc, acc]", "heads: each once, not acc, acc"),
        ],
    )
    def test_a_curve_along_nothing_and_a_head_twice_are_refused(self, change, problem, tmp_path):
        grid = "grid: {objective.robust_weight: [0.1, 0.9]}"
        write_text(tmp_path / "s.yaml", f"name: x\nrecipe: digits/tora\n{grid}\n{change}\n")
        with pytest.raises(UserError, match=problem):
            sweep_from(str(tmp_path / "s.yaml"), [])

    def test_seeds_are_averaged(self, trade_off):
        _, sweep, results = trade_off
        (point, outcome), (_, other) = results[0], results[1]
        doubled = [(Point({**point.settings, "seed": seed}), one) for seed, one in enumerate((outcome, other))]
        line = sweep_finding(sweep, doubled).charts[0].lines[0]
        values = outcome[0].robust_accuracy, other[0].robust_accuracy
        assert line.ys == (pytest.approx(sum(values) / 2),)
        assert line.ranges == ((min(values), max(values)),)


def test_a_setting_inside_a_component_changes_the_phases_that_have_it():
    recipe = recipe_from("digits/tora", ["objective.robust_weight=0.3", "start=null"])
    assert recipe.phases[0].objective is None
    assert recipe.phases[1].objective.robust_weight == 0.3
    recipe = recipe_from("digits/tora", ["ema.decay=0.5", "start=null"])
    assert [phase.ema.decay for phase in recipe.phases] == [0.5, 0.5]


def test_a_case_may_name_another_recipe():
    sweep = sweep_from("sweeps/tora_tuning_digits", [])
    recipes = [recipe for _, recipe in check_sweep(sweep)]
    assert {recipe.name for recipe in recipes} == {
        "digits-head-only", "digits-single-adapter", "digits-adapter-fusion", "digits-tora"
    }  # fmt: skip
    assert {recipe.phases[-1].objective.robust_weight for recipe in recipes} == {0.1, 0.5, 0.9}

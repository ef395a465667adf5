"""Sweeps: every point a run, mistakes before the first of them, failures next to the others."""

import json
import re
from pathlib import Path

import pytest
import yaml
from PIL import Image
from typer.testing import CliRunner

import robustvit as rv
from robustvit.cli.main import app
from robustvit.core.config import shipped_recipes, shipped_sweeps
from robustvit.core.errors import UserError
from robustvit.core.files import write_text
from robustvit.core.finding import read_finding
from robustvit.evaluation import Accuracy, Condition
from robustvit.training import recipe_from
from robustvit.training.sweep import check_sweep, run_sweep, sweep_commands, sweep_finding
from robustvit.training.sweep_grid import Point, sweep_from

TINY = ["epochs=1", "batch_size=256", "validation.hold_out=0", "model.settings.depth=1", "model.settings.embed_dim=12"]
SMALL = "validation.hold_out: 0, model.settings.depth: 1, model.settings.embed_dim: 12"


def sweep(*arguments: object) -> tuple[int, str]:
    """The command's exit code, and its output."""
    result = CliRunner().invoke(app, ["sweep", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


def options(*overrides: str) -> list[str]:
    return [part for override in overrides for part in ("-o", override)]


@pytest.mark.parametrize("name", shipped_sweeps())
def test_every_sweep_is_made_of_recipes_that_can_be_read(name):
    sweep = sweep_from(name, [])
    points = sweep.points()
    assert len(points) > 1
    for point in points:
        recipe_from(sweep.recipe_of(point), point.overrides)
    commands = sweep_commands(sweep, Path("runs"))
    assert len(commands) >= len(points)
    assert all(command.startswith("robustvit train ") for command in commands)


def test_a_sweep_trains_judges_and_goes_on(tmp_path):
    sweep = sweep_from("digits/trades", ["objective.beta=1,3", *TINY], "pgd-2", 32)
    results = run_sweep(sweep, tmp_path, quiet=True)
    assert [point.overrides[0] for point, _ in results] == ["objective.beta=1", "objective.beta=3"]
    weights = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("last.safetensors")}
    assert len(weights) == 2
    again = run_sweep(sweep, tmp_path, quiet=True)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("last.safetensors")} == weights
    assert [result.robust_accuracy for _, (result,) in again] == [result.robust_accuracy for _, (result,) in results]
    page = rv.report([tmp_path / point.folder for point, _ in results], tmp_path / "report.html").read_text()
    assert "Sweep of digits/trades" in page
    assert "Accuracy against objective.beta" in page


def test_mistakes_of_a_sweep_are_reported_before_the_first_run(tmp_path):
    for what, overrides, message in (
        ("digits/trades", [], "say what changes"),
        ("digits/trades", ["beta"], "expected path.to.setting"),
        ("digits/nothing", ["objective.beta=1,2"], "no recipe"),
        ("digits/trades", ["objective.beta=1,1"], "objective.beta=1: the same recipe as objective.beta=1;"),
        ("digits/trades", ["objective.beta=1,1.0"], "objective.beta=1.0: the same recipe as objective.beta=1;"),
    ):
        with pytest.raises(UserError, match=message):
            check_sweep(sweep_from(what, overrides))
    with pytest.raises(UserError, match="did you mean 'beta'"):
        run_sweep(sweep_from("digits/trades", ["objective.bta=1,2"]), tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_a_failed_run_is_noted_and_tried_again(tmp_path):
    command = ["digits/standard", *options("optimizer.lr=0.001,1e30,0.002", *TINY[:1], *TINY[2:])]
    command += ["--suite", "pgd-2", "--images", 32, "--run", tmp_path]
    code, output = sweep(*command)
    assert code == 2
    assert "1 of 3 runs failed" in output
    weights = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("last.safetensors")}
    assert len(weights) == 2
    finding = json.loads(next(tmp_path.glob("analysis/*/finding.json")).read_text())
    assert [row[-3].startswith("failed: ") for row in finding["tables"][0]["rows"]] == [False, True, False]
    assert [len(line["xs"]) for line in finding["charts"][0]["lines"]] == [2, 2]
    assert sweep(*command)[0] == 2
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("last.safetensors")} == weights


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (options("model.patch_size=2,3"), "model.patch_size=3: .* don't divide"),
        ([*options("objective.beta=1,2"), "--images", 0], "sweep.images"),
        ([*options("objective.beta=1,2"), "--images", -5], "sweep.images"),
        ([*options("objective.beta=1,2"), "--images", 9999], "images: .*, not 9999"),
        ([*options("objective.beta=1,2"), "--suite", "carlini-wagner"], "carlini"),
        (options("start=null,{weights: nowhere.safetensors}"), "nowhere.safetensors"),
        ([*options("model={name: resnet18, num_classes: 10}"), "--suite", "aas-pgd-2"], "attention"),
    ],
)
def test_what_would_fail_later_is_reported_at_once(tmp_path, arguments, message):
    code, output = sweep("digits/trades", *arguments, "--run", tmp_path / "x")
    assert code == 2
    assert re.search(message, output), output
    assert not (tmp_path / "x").exists()


def test_printed_commands_are_checked_too():
    for overrides, message in ((["objective.bta=1,2"], "did you mean 'beta'"), (["model.patch_size=2,3"], "divide")):
        code, output = sweep("digits/trades", *options(*overrides), "--print")
        assert code == 2
        assert message in output
        assert "robustvit train" not in output


def test_cases_may_set_different_things(tmp_path):
    file = tmp_path / "mine.yaml"
    write_text(
        file,
        f"""
name: mine
recipe: digits/standard
suite: clean
images: 16
grid: {{epochs: [1, 2]}}
cases:
  - {{batch_size: 256, {SMALL}}}
  - {{optimizer.opt: sgd, {SMALL}, batch_size: 512}}
  - {{optimizer.opt: sgd, {SMALL}, model.settings.num_heads: 1}}
""",
    )
    run_sweep(sweep_from(str(file), []), tmp_path, quiet=True)
    finding = json.loads(next(tmp_path.glob("analysis/*/finding.json")).read_text())
    table, chart = finding["tables"][0], finding["charts"][0]
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]
    assert [row["batch_size"] for row in rows] == ["256", "256", "512", "512", "", ""]
    assert [row["optimizer.opt"] for row in rows] == ["", "", *["sgd"] * 4]
    assert [row["epochs"] for row in rows] == ["1", "2"] * 3
    assert chart["x_title"] == "epochs"
    assert [line["xs"] for line in chart["lines"]] == [[1.0, 2.0]] * 3


def test_words_and_several_suites_make_dots_in_rows(tmp_path):
    file = tmp_path / "mine.yaml"
    tree = {
        "name": "mine",
        "recipe": "digits/standard",
        "suite": ["fgsm", "aas-fgsm"],
        "images": 16,
        "grid": {"optimizer.opt": ["sgd", "adamw"], "epochs": [1], **yaml.safe_load(f"{{{SMALL}}}")},
    }
    tree["grid"] = {name: value if isinstance(value, list) else [value] for name, value in tree["grid"].items()}
    write_text(file, yaml.safe_dump(tree))
    results = run_sweep(sweep_from(str(file), []), tmp_path, quiet=True)
    finding = read_finding(next(tmp_path.glob("analysis/*")))
    (chart,), (table,) = finding.charts, finding.tables
    assert chart.rows == ("opt=sgd", "opt=adamw")
    assert [line.name for line in chart.lines] == ["clean", "fgsm", "aas-fgsm", "aas-fgsm, random factors"]
    for place, (_, (plain, scaled)) in enumerate(results):
        expected = (plain.clean_accuracy, plain.robust_accuracy, scaled.robust_accuracy)
        assert tuple(line.ys[place] for line in chart.lines[:3]) == expected
        assert dict(zip(table.columns, table.rows[place], strict=True))["robust (fgsm)"] == f"{100 * expected[1]:.1f} %"
    page = rv.report([tmp_path / point.folder for point, _ in results], tmp_path / "report.html").read_text()
    assert "opt=sgd, aas-fgsm: " in page


def test_different_points_have_different_folders():
    long = {f"model.settings.setting_{i}": 0 for i in range(20)}
    points = [
        Point({**long, "seed": 1}),
        Point({**long, "seed": 2}),
        Point({"x": "a/b"}),
        Point({"x": "a b"}),
        Point({}),
    ]
    folders = [point.folder for point in points]
    assert len(set(folders)) == len(folders)
    assert max(map(len, folders)) < 140
    assert Point({"objective.beta": 3}).folder == "objective.beta=3"


@pytest.mark.parametrize(
    "override",
    ["objective.beta=[1", "objective.beta={1", "objective.beta=1,]", "objective.beta='1", "data=2001-99-99"],
)
def test_values_that_are_not_yaml_are_reported(override):
    code, output = sweep("digits/trades", *options(override), "--print")
    assert code == 2
    assert f"-o {override}: " in output


@pytest.mark.parametrize("grid", ["", "[1, 2]", "3"])
def test_a_grid_that_is_none_is_reported(tmp_path, grid):
    write_text(tmp_path / "mine.yaml", f"name: mine\nrecipe: digits/trades\ngrid: {grid}\n")
    for arguments in ([], options("objective.beta=1,2")):
        code, output = sweep(tmp_path / "mine.yaml", *arguments, "--print")
        assert code == 2
        assert "sweep.grid: " in output


def test_a_setting_given_twice_is_reported():
    code, output = sweep("digits/trades", *options("objective.beta=1", "objective.beta=3"), "--print")
    assert code == 2
    assert "objective.beta is given twice" in output


def test_the_recipe_of_a_file_may_lie_next_to_it(tmp_path):
    write_text(tmp_path / "mine.yaml", "extends: digits/trades\nname: mine\n")
    write_text(tmp_path / "betas.yaml", "name: betas\nrecipe: mine.yaml\ngrid: {objective.beta: [1, 2]}\n")
    code, output = sweep(tmp_path / "betas.yaml", "--print")
    assert code == 0
    assert output.count(f"robustvit train {tmp_path / 'mine.yaml'} ") == 2


def test_a_file_may_hold_several_sweeps_of_variants(tmp_path):
    write_text(tmp_path / "mine.yaml", "extends: digits/trades\nvariants: {a: {}, b: {seed: 1}}\n")
    text = "recipe: mine.yaml:b\ngrid: {epochs: [1, 2]}\nvariants: {few: {}, many: {name: m, grid: {epochs: [8, 9]}}}\n"
    write_text(tmp_path / "epochs.yaml", text)
    sweep = sweep_from(f"{tmp_path / 'epochs.yaml'}:many", [])
    assert (sweep.name, sweep.recipe, sweep.grid) == ("m", f"{tmp_path / 'mine.yaml'}:b", {"epochs": (8, 9)})
    assert recipe_from(sweep.recipe).seed == 1
    assert sweep_from(f"{tmp_path / 'epochs.yaml'}:few", []).name == "epochs-few"
    assert sweep_from(f"{tmp_path / 'mine.yaml'}:a", ["seed=1,2"]).name == "mine-a-sweep"
    with pytest.raises(UserError, match="epochs.yaml: holds several recipes; choose one, such as .*epochs.yaml:few"):
        sweep_from(str(tmp_path / "epochs.yaml"), [])


def test_every_recipe_has_a_folder_of_its_own():
    names = [sweep_from(name, ["seed=1,2"]).name for name in shipped_recipes()]
    assert "digits-trades-sweep" in names
    assert len(set(names)) == len(names)


def test_two_sweeps_in_a_folder_keep_their_tables_and_one_run_has_a_table_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    root = Path("runs") / "digits-trades-sweep"
    for beta in (1, 2):
        changes = options(f"objective.beta={beta}", *TINY)
        code, _ = sweep("digits/trades", *changes, "--suite", "clean", "--images", 16)
        assert code == 0
        assert "Sweep of digits/trades" in (root / "report.html").read_text()
    assert len(list(root.glob("analysis/*/finding.json"))) == 2
    assert "Sweep of" not in rv.report(next(root.glob("objective.beta=1,*"))).read_text()


def made_of(cases, suite="pgd-2", grid=None):
    tree = {"name": "mine", "recipe": "digits/standard", "suite": suite, "images": 16}
    small = yaml.safe_load(f"{{{SMALL}}}") | {"epochs": 1}
    return {**tree, "cases": [{**case, **small} for case in cases], **({"grid": grid} if grid else {})}


def test_without_an_attack_nothing_is_called_robust(tmp_path):
    write_text(tmp_path / "mine.yaml", yaml.safe_dump(made_of([{"seed": 1}, {"seed": 2}], suite="clean")))
    run_sweep(sweep_from(str(tmp_path / "mine.yaml"), []), tmp_path, quiet=True)
    finding = read_finding(next(tmp_path.glob("analysis/*")))
    assert not any("robust" in name for name in finding.tables[0].columns)
    assert [line.name for line in finding.charts[0].lines] == ["clean"]


def test_a_suite_that_brings_fewer_images_than_the_sweep_asks_for_shows_all_of_them(tmp_path):
    for name in ("cat1-dog1", "cat1-cat2", "dog1-truck3"):
        Image.new("RGB", (8, 8), "gray").save(tmp_path / f"{name}.png")
    brought = f"cue-conflict:path={tmp_path},labels=cifar10"
    write_text(tmp_path / "mine.yaml", yaml.safe_dump(made_of([{"seed": 1}], suite=["clean", brought])))
    ((_, results),) = run_sweep(sweep_from(str(tmp_path / "mine.yaml"), []), tmp_path, quiet=True)
    assert [result.num_images for result in results] == [16, 3]


def test_accuracy_on_changed_images_is_not_called_clean(trained, digits):
    dark = Condition("dark", change=lambda x, streams: x / 4)
    result = rv.evaluate(trained, digits, suite=Accuracy(conditions=(dark,)), images=20, quiet=True)
    points = [(Point({"seed": seed}), (result,)) for seed in (1, 2)]
    finding = sweep_finding(sweep_from("digits/standard", ["seed=1,2"], "accuracy", 20), points)
    assert finding.tables[0].columns == ("seed", "accuracy")
    assert [line.name for line in finding.charts[0].lines] == ["accuracy"]


def test_what_is_not_set_is_not_what_is_set_to_nothing(tmp_path):
    name = "objective.label_smoothing"
    cases = [{name: value, **more} for more in ({}, {"clip_norm": None}) for value in (0.1, 0.2)]
    write_text(tmp_path / "mine.yaml", yaml.safe_dump(made_of(cases)))
    run_sweep(sweep_from(str(tmp_path / "mine.yaml"), []), tmp_path, quiet=True)
    (chart,) = read_finding(next(tmp_path.glob("analysis/*"))).charts
    assert [(line.name, line.xs) for line in chart.lines] == [("robust", (0.1, 0.2)), ("clip_norm=null", (0.1, 0.2))]


def test_a_run_that_raises_whatever_it_likes_does_not_end_the_sweep(tmp_path, monkeypatch):
    from robustvit.training import sweep as module

    trained = module.train

    def train(recipe, **options):
        if recipe.phases[0].objective.label_smoothing == 0.2:
            raise RuntimeError("value cannot be converted\nand more")
        return trained(recipe, **options)

    monkeypatch.setattr(module, "train", train)
    results = run_sweep(
        sweep_from("digits/standard", ["objective.label_smoothing=0.2,0.1", *TINY], "clean", 16), tmp_path, quiet=True
    )
    assert str(results[0][1]) == "RuntimeError: value cannot be converted"
    assert isinstance(results[1][1], tuple)
    table = read_finding(next(tmp_path.glob("analysis/*"))).tables[0]
    assert table.rows[0][-1].startswith("failed: RuntimeError")


def test_crowded_numbers_are_drawn_in_rows(tmp_path):
    decays = ["objective.label_smoothing=0,0.001,0.5", *TINY]
    run_sweep(sweep_from("digits/standard", decays, "clean", 16), tmp_path, quiet=True)
    (chart,) = read_finding(next(tmp_path.glob("analysis/*"))).charts
    assert chart.rows == ("label_smoothing=0", "label_smoothing=0.001", "label_smoothing=0.5")


def test_settings_of_one_last_name_are_distinguished(tmp_path):
    both = ["checkpoints.every=1,2", "validation.every=1,2", *TINY]
    run_sweep(sweep_from("digits/standard", both, "clean", 16), tmp_path, quiet=True)
    (chart,) = read_finding(next(tmp_path.glob("analysis/*"))).charts
    names = [line.name for line in chart.lines]
    assert names == ["validation.every=1, clean", "validation.every=2, clean"]
    assert all(line.xs == (1.0, 2.0) for line in chart.lines)


def test_clean_is_that_of_the_model_as_it_is(tmp_path):
    suites = ["aas-fgsm:judged_on=scaled,factors=0.01", "fgsm"]
    write_text(tmp_path / "mine.yaml", yaml.safe_dump(made_of([{"seed": 1}, {"seed": 2}], suite=suites)))
    results = run_sweep(sweep_from(str(tmp_path / "mine.yaml"), []), tmp_path, quiet=True)
    table = read_finding(next(tmp_path.glob("analysis/*"))).tables[0]
    for row, (_, (_, plain)) in zip(table.rows, results, strict=True):
        assert dict(zip(table.columns, row, strict=True))["clean"] == f"{100 * plain.clean_accuracy:.1f} %"


def test_values_with_commas_are_quoted():
    points = sweep_from("digits/trades", ["validation.suite='pgd-2:loss=cw,step=2/255',pgd-3"]).points()
    assert [point.settings["validation.suite"] for point in points] == ["pgd-2:loss=cw,step=2/255", "pgd-3"]
    points = sweep_from("digits/trades", ["data.path=a/{split}-*.tar,b?.tar,[1, 2]"]).points()
    assert [point.settings["data.path"] for point in points] == ["a/{split}-*.tar", "b?.tar", [1, 2]]


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"suite": []}, "suite: at least one"),
        ({"grid": {"seed": [1]}}, "seed is in both grid and cases"),
        ({"paired": "epochs"}, "paired: 'epochs' must be a setting of the grid with two values"),
        ({"cases": [{"optimizer.opt": "nosuch"}, {}]}, "nosuch"),
        ({"cases": [{"name": "a"}, {"name": "b"}]}, "the same recipe as name=a"),
    ],
)
def test_mistakes_of_a_file_are_reported_with_printed_commands_too(tmp_path, tree, message):
    write_text(tmp_path / "mine.yaml", yaml.safe_dump({**made_of([{"seed": 1}, {"seed": 2}]), **tree}))
    code, output = sweep(tmp_path / "mine.yaml", "--print")
    assert code == 2
    assert message in output
    code, output = sweep("sweeps/beats_wrn_bta")
    assert code == 2
    assert "no sweep or recipe 'sweeps/beats_wrn_bta'; did you mean 'sweeps/beats_wrn_beta'" in output


@pytest.mark.slow
def test_processes_take_every_other_run_and_the_first_of_all_once(tmp_path):
    write_text(tmp_path / "mine.yaml", yaml.safe_dump({
        "name": "mine", "recipe": "digits/trades", "first": "digits/standard", "suite": "pgd-2", "images": 32,
        "grid": {"objective.beta": [1, 3, 6], **{key: [value] for key, value in (
            line.split("=") for line in TINY if not line.startswith("model"))}},
    }))  # fmt: skip
    sweep = sweep_from(str(tmp_path / "mine.yaml"), [])
    before = {}
    for name, processes in (("one", 1), ("two", 2)):
        results = run_sweep(sweep, tmp_path / name, quiet=True, processes=processes)
        before[name] = [result.robust_accuracy for _, (result,) in results]
        assert len(list((tmp_path / name).glob("first-*"))) == 1
    assert before["one"] == before["two"]


def test_each_process_of_a_launcher_takes_its_runs(tmp_path, monkeypatch):
    from robustvit.core.world import World
    from robustvit.training import sweep as module

    sweep = sweep_from("digits/trades", ["objective.beta=1,3,6", *TINY], "pgd-2", 32)
    taken = []
    monkeypatch.setattr(World, "barrier", lambda self: None)
    monkeypatch.setattr(module, "require_shared", lambda *arguments: None)
    monkeypatch.setattr(module, "_open_point", lambda *arguments: None)
    monkeypatch.setattr(module, "_run_point", lambda sweep, point, *rest, **named: taken.append(point.overrides[0]))
    assert run_sweep(sweep, tmp_path, world=World(1, 2)) == []
    assert taken == ["objective.beta=3"], "and the first process makes the finding"
    assert not list(tmp_path.glob("analysis/*"))

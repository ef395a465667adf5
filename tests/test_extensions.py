"""An extension is one module: an evaluator, an analysis, an attack and a task, registered here and nowhere else."""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pytest
import yaml
from typer.testing import CliRunner

import robustvit as rv
from conftest import tiny_vit
from robustvit.attacks import Search
from robustvit.cli.main import app
from robustvit.core.component import build, component, to_dict
from robustvit.core.errors import UserError
from robustvit.core.figures import Table
from robustvit.core.finding import Finding
from robustvit.core.numbers import Count
from robustvit.core.result import Measure, Outcomes, Result, ResultWarning, ThreatInfo
from robustvit.core.result_files import read_result
from robustvit.evaluation import Condition, ConditionEvaluator
from robustvit.evaluation.evaluator import Evaluation
from robustvit.training.recipe import recipe_from
from test_loop import Fit, LineRecipe


@component("evaluator", "toy-shades")
class Shades(ConditionEvaluator):
    """Accuracy on darker images."""

    steps: Count = 2

    def list_conditions(self, subject):
        return [
            Condition("clean"),
            *(Condition(f"dark/{i}", ("dark",), change=Darker(i)) for i in range(1, self.steps + 1)),
        ]

    def measures(self, subject, answers):
        return (Measure("darkest", float(answers[f"dark/{self.steps}"].correct.mean()), description="the last one"),)


class Darker:
    def __init__(self, times):
        self.times = times

    def __call__(self, x, streams):
        return x / 2**self.times

    def __repr__(self):
        return f"Darker({self.times})"


@component("evaluator", "toy-calibration")
class Calibration:
    """No conditions and no attacks: an evaluation of its own."""

    bins: tuple[int, ...] = (5, 10)
    eps: float | None = None

    def begin(self, subject):
        return CalibrationEvaluation(self, subject)


@dataclass(frozen=True)
class CalibrationEvaluation(Evaluation):
    makes_images = True
    carried: float = 0.0

    title = "toy-calibration"

    @property
    def identity(self):
        return {"bins": self.evaluator.bins, "eps": self.evaluator.eps, "carried": self.carried}

    @property
    def settings(self):
        return to_dict(self.evaluator)

    def carry(self, smaller):
        return replace(self, carried=smaller.measure("ece").value)

    def advance(self, ledger, world, sinks, quiet):
        images = world.shard(self.subject.indices)
        x, y = self.subject.batch(images)
        predicted = self.subject(x).argmax(1)
        ledger.record_answers("all", images.numpy(), predicted.numpy(), (predicted == y).numpy())

    def is_complete(self, ledger):
        return len(ledger.answers("all").images) == len(self.subject.indices)

    def save_images(self, folder, ledger, smaller):
        (folder / "toy.txt").write_text("kept")
        return [ResultWarning("toy-kept", "in a file of its own")]

    def result(self, ledger, provenance, control):
        eps, ece = self.evaluator.eps, float(ledger.answers("all").correct.mean()) + self.carried
        threat = None if eps is None else ThreatInfo("inf", eps, f"{eps}")
        measures = (Measure("ece", ece), Measure("nll", 1.25, (1.0, 1.5), "in nats"))
        outcomes = Outcomes(self.subject.indices.numpy())
        return Result("toy-calibration", self.title, measures, provenance, outcomes, threat=threat)


@component("analysis", "toy-mean")
class MeanLogit:
    """The mean of all logits."""

    digits: Count = 3

    def __call__(self, subject, store):
        logits = subject(subject.batch(subject.indices)[0])
        return Finding(
            "Toy mean", "of all logits", (Table("Mean", ("what", "value"), (("mean", f"{logits.mean():.3f}"),)),)
        )


@component("attack", "toy-negative")
class Negative:
    """As far towards the negative of the image as the threat allows."""

    strength: float = 1.0

    def __call__(self, model, x, y, threat, search=Search()):
        return threat.project(x, x + self.strength * (1 - 2 * x))


@component("task", "toy-line")
class Line:
    """A line through points."""

    recipe_type: ClassVar = LineRecipe

    def build(self, recipe, recorder, world):
        return Fit(recipe, recorder)


def run(*words):
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture
def model(tmp_path):
    rv.save_model(tiny_vit(), tmp_path / "vit.safetensors")
    return tmp_path / "vit.safetensors"


@pytest.mark.parametrize(
    ("kind", "listed", "settings"),
    [
        ("evaluator", "evaluators", {"name": "toy-shades", "steps": 3}),
        ("analysis", "analyses", {"name": "toy-mean", "digits": 2}),
        ("attack", "attacks", {"name": "toy-negative", "strength": 0.5}),
        ("task", "tasks", {"name": "toy-line"}),
    ],
)
def test_each_is_listed_and_read_from_yaml(kind, listed, settings):
    made = build(kind, yaml.safe_load(yaml.safe_dump(settings)))
    assert to_dict(made) == settings
    assert f"{settings['name']} {type(made).__doc__}" in " ".join(run("list", listed).split())


def test_an_evaluator_and_an_attack_on_the_command_line_and_in_a_report(model, tmp_path):
    folder = tmp_path / "run"
    options = ("--data", "digits", "--images", 40, "--run", folder)
    shown = run("evaluate", model, "--suite", "toy-shades:steps=3", *options)
    assert "dark/3" in shown
    shown = run("evaluate", model, "--suite", "toy-negative:strength=0.5", "--eps", "0.2", *options)
    assert "toy-negative:strength=0.5" in shown
    results = {result.kind: result for result in map(read_result, (folder / "eval").iterdir())}
    assert [one.name for one in results["toy-shades"].conditions] == ["clean", "dark/1", "dark/2", "dark/3"]
    assert results["toy-shades"].headline.name == "darkest"
    assert results["attacked"].stages[0].settings == {"name": "toy-negative", "strength": 0.5}
    page = rv.report([folder], tmp_path / "page.html").read_text()
    for word in ("toy-shades", "darkest", "dark/3", "toy-negative:strength=0.5"):
        assert word in page, word
    again = run("evaluate", model, "--suite", "toy-shades:steps=3", *options)
    assert "dark/3" in again, "a finished evaluation is shown again"


def test_an_evaluator_without_conditions_shows_its_measures(model, tmp_path):
    """Also one with an eps, which has neither clean nor robust accuracy, in one report with attacks."""
    options = ("--data", "digits", "--images", 40, "--run", tmp_path / "run")
    for suite in ("toy-calibration", "toy-calibration:eps=0.25"):
        for again in range(2):
            shown = run("evaluate", model, "--suite", suite, *options)
            assert "ece: 0." in shown, again
            assert "nll: 1.25 (1 to 1.5) in nats" in shown
    run("evaluate", model, "--suite", "fgsm", "--eps", "0.2", *options)
    page = rv.report([tmp_path / "run"], tmp_path / "page.html").read_text()
    assert page.count("<b>1.25</b> <small>1 to 1.5</small></td>") == 2
    for title in ("toy-calibration", "toy-calibration, Linf 0.25"):
        assert re.search(rf"<h3>{title} <span[^>]*>[^<]*digits[^<]*, 40 of ", page)
    assert "intervals over the choice of images" in page.partition("<h2>Other results</h2>")[2]
    assert page.count("not attacked") == 0


def test_an_evaluator_may_offer_what_attacks_do(trained, digits, tmp_path):
    options = {"images": 20, "run": tmp_path, "quiet": True}
    small = rv.evaluate(trained, digits, suite=Calibration(eps=0.1), **options)
    result = rv.evaluate(trained, digits, suite=Calibration(eps=0.2), smaller=small, save_images=True, **options)
    assert result.measure("ece").value == 2 * small.measure("ece").value
    assert (Path(result.folder) / "toy.txt").exists()
    assert [warning.name for warning in result.warnings] == ["toy-kept"]


def test_an_analysis_on_the_command_line_and_in_a_report(model, tmp_path):
    folder = tmp_path / "run"
    run(
        "analyze",
        model,
        "--what",
        "toy-mean",
        "--data",
        "digits",
        "--images",
        40,
        "--run",
        folder,
        "-o",
        "toy-mean.digits=2",
    )
    (file,) = folder.glob("analysis/toy-mean-*/finding.json")
    assert '"digits": 2' in file.read_text()
    assert "Toy mean" in rv.report([folder], tmp_path / "page.html").read_text()


def test_a_task_on_the_command_line_and_in_a_report(tmp_path):
    recipe = {"name": "line", "task": "toy-line", "phases": [{"name": "main", "epochs": 2, "batch_size": 8}]}
    (tmp_path / "line.yaml").write_text(yaml.safe_dump(recipe))
    run("train", tmp_path / "line.yaml", "--run", tmp_path / "run", "-o", "noise=0.2")
    assert (tmp_path / "run" / "checkpoints" / "last.safetensors").exists()
    assert "toy-line" in rv.report([tmp_path / "run"], tmp_path / "page.html").read_text()


def test_a_changed_condition_has_a_folder_of_its_own(trained, digits, tmp_path):
    folders = {
        rv.evaluate(trained, digits, suite=Shades(steps=steps), images=20, run=tmp_path, quiet=True).folder
        for steps in (1, 2, 1)
    }
    assert len(folders) == 2


def test_commands_for_classifiers_name_the_task_of_another_recipe(tmp_path):
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("{name: mine, task: toy-line, epochs: 1}")
    with pytest.raises(UserError, match="'mine' has the task 'toy-line'"):
        recipe_from(recipe)
    assert "task:\n  name: toy-line" in run("check", recipe)

"""The loop trains any task: here a line through points."""

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import robustvit as rv
from robustvit.cli.main import app
from robustvit.core.component import component, settings
from robustvit.core.errors import UserError
from robustvit.core.journal import read_rows
from robustvit.core.world import World
from robustvit.models import load_state
from robustvit.training import recipe_from
from robustvit.training.base_recipe import BasePhase, BaseRecipe
from robustvit.training.task import Position, StepResult
from test_stories import ENVIRONMENT, wait_for

YAML = """\
name: line
task: test-line
epochs: 4
batch_size: 8
log_every: 5
checkpoints: {seconds: 0}
phases: [{name: fast}, {name: slow, lr: 0.01}]
"""


@settings
class LinePhase(BasePhase):
    lr: float = 0.1


@settings
class LineRecipe(BaseRecipe):
    phases: tuple[LinePhase, ...]
    noise: float = 0.1


@component("task", "test-line")
class Line:
    """Least squares."""

    recipe_type: ClassVar = LineRecipe

    def build(self, recipe, recorder, world):
        return Fit(recipe, recorder)


@dataclass
class Points:
    phase: LinePhase
    steps_per_epoch = 8

    def __len__(self):
        return self.phase.epochs * self.steps_per_epoch

    def __getitem__(self, step):
        return torch.rand(self.phase.batch_size, 1, generator=torch.Generator().manual_seed(step))


class Fit:
    title = "points"

    def __init__(self, recipe, recorder):
        self.recipe, self.recorder, self.line = recipe, recorder, nn.Linear(1, 1)

    def fingerprint(self):
        return "always the same"

    def initialize(self):
        with torch.no_grad():
            self.line.weight.fill_(0), self.line.bias.fill_(0)

    def begin_phase(self, number):
        self.phase = self.recipe.phases[number]
        self.optimizer = torch.optim.Adam(self.line.parameters(), self.phase.lr)
        return Points(self.phase)

    def begin_epoch(self, position: Position):
        return [{"kind": "event", "name": "half", "values": {"progress": position.progress}}] * (position.epoch == 2)

    def step(self, x, position):
        y = 3 * x - 1 + self.recipe.noise * torch.randn_like(x)
        losses = (self.line(x) - y).square().flatten()
        self.optimizer.zero_grad()
        losses.mean().backward()
        self.optimizer.step()
        return StepResult({"lr": self.phase.lr}, {"loss": losses})

    def end_step(self, result):
        pass

    def end_epoch(self, position):
        self.recorder.log(position, {"kind": "validation", "slope": self.line.weight.item()})

    def end_phase(self): ...

    def weights(self):
        return self.line

    def state(self):
        return {"line": self.line.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load_state(self, state):
        self.line.load_state_dict(state["line"])
        self.optimizer.load_state_dict(state["optimizer"])


def outcome(folder: Path) -> tuple[bytes, str]:
    return (folder / "checkpoints" / "last.safetensors").read_bytes(), (folder / "metrics.jsonl").read_text()


@pytest.fixture
def recipe(tmp_path) -> Path:
    path = tmp_path / "line.yaml"
    path.write_text(YAML)
    return path


@pytest.fixture
def unbroken(recipe, tmp_path) -> Path:
    return rv.train(recipe, run=tmp_path / "unbroken", quiet=True).path


def test_a_registered_task_is_trained_by_its_name_in_yaml(recipe, unbroken, tmp_path):
    done = CliRunner().invoke(app, ["train", str(recipe), "--run", str(tmp_path / "cli")])
    assert done.exit_code == 0, done.output
    assert outcome(tmp_path / "cli") == outcome(unbroken)
    rows = read_rows(unbroken / "metrics.jsonl")
    assert [row["kind"] for row in rows].count("validation") == 8
    assert [(row["phase"], row["step"], row["values"]) for row in rows if row["kind"] == "event"] == [
        ("fast", 17, {"progress": 0.5}),
        ("slow", 17, {"progress": 0.5}),
    ]
    losses = [row["loss"] for row in rows if row["kind"] == "train"]
    assert losses[-1] < losses[0] / 10
    state, facts = load_state(unbroken / "checkpoints" / "last.safetensors")
    assert float(state["weight"]) == pytest.approx(rows[-1]["slope"])
    assert facts["rule"] == "last epoch (4)"
    assert facts["recipe"]["task"] == {"name": "test-line"}


@pytest.mark.parametrize("stops", [[1], [16, 3], [31, 1, 1, 17]])
def test_a_stopped_task_ends_as_the_unbroken_one(stops, recipe, unbroken, tmp_path):
    for steps in stops:
        rv.train(recipe, run=tmp_path / "broken", quiet=True, max_steps=steps)
    rv.train(recipe, run=tmp_path / "broken", quiet=True)
    assert outcome(tmp_path / "broken") == outcome(unbroken)


def test_a_killed_task_ends_as_the_unbroken_one(recipe, unbroken, tmp_path):
    run = tmp_path / "killed"
    code = (
        "import time, test_loop, robustvit\n"
        "step = test_loop.Fit.step\n"
        "test_loop.Fit.step = lambda *args: (time.sleep(0.1), step(*args))[1]\n"
        f"robustvit.train({str(recipe)!r}, run={str(run)!r}, quiet=True)"
    )
    path = os.pathsep.join([str(Path(__file__).parent), ENVIRONMENT.get("PYTHONPATH", "")])
    process = subprocess.Popen([sys.executable, "-c", code], env={**ENVIRONMENT, "PYTHONPATH": path})
    wait_for(lambda: len(list(run.glob("checkpoints/state-*.pt"))) == 2, process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    rv.train(recipe, run=run, quiet=True)
    assert outcome(run) == outcome(unbroken)


def test_only_the_first_process_writes(recipe, tmp_path, monkeypatch):
    monkeypatch.setattr(World, "broadcast", lambda self, value: value)
    monkeypatch.setattr(World, "gather", lambda self, value: [value] * self.size)
    monkeypatch.setattr(World, "barrier", lambda self: None)
    rv.train(recipe, run=tmp_path / "second", world=World(1, 2))
    assert not (tmp_path / "second").exists()


def test_mistakes_in_the_recipe_of_a_task_are_reported(recipe):
    for overrides, message in [
        (["lrr=3"], r"recipe.phases.0.lrr: no such setting; did you mean 'lr'"),
        (["noice=3"], r"recipe.noice: no such setting; did you mean 'noise'"),
        (["task=test-lime"], r"recipe.task: no task 'test-lime'; did you mean 'test-line'"),
        (["task=3"], r"recipe.task: expected a registered task"),
    ]:
        with pytest.raises(UserError, match=message):
            rv.train(recipe, overrides=overrides)
    with pytest.raises(UserError, match="recipe.task: a classifier's recipe"):
        recipe_from(recipe)

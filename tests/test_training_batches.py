"""Recipes into batches: the sixteen combinations, generated images, resume with any number of workers."""

import itertools
import os
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from typer.testing import CliRunner

import robustvit as rv
from robustvit.cli.check import label_text
from robustvit.cli.main import app
from robustvit.core.config import load_recipe
from robustvit.core.errors import UserError
from robustvit.core.journal import read_rows
from robustvit.data import Digits
from robustvit.models import fingerprint, load_model
from robustvit.training import recipe_from
from test_stories import ENVIRONMENT, ROBUSTVIT, wait_for

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")
SWITCHES = ("mixing.mixup", "mixing.cutmix", "augmentation.rand_augment", "augmentation.random_erasing")


def small(**changes):
    tree = load_recipe("digits/standard")
    tree["model"] = {**tree["model"], "settings": {**tree["model"]["settings"], "embed_dim": 16, "depth": 1}}
    return {
        **tree,
        "epochs": 1,
        "batch_size": 200,
        "validation": {"hold_out": 0},
        "augmentation": "canonical",
        "mixing": {},
        "log_every": 1,
        **changes,
    }


@pytest.fixture
def shards(tmp_path):
    images = Digits().open("test")
    x, y = images.take(torch.arange(len(images)))
    (tmp_path / "shards").mkdir()
    np.save(tmp_path / "shards" / "images-0.npy", x.permute(0, 2, 3, 1).numpy())
    np.save(tmp_path / "shards" / "labels-0.npy", y.numpy())
    return {"data": {"name": "generated", "path": str(tmp_path / "shards")}, "ratio": 0.35}


@pytest.mark.parametrize("off", [[s for s, on in zip(SWITCHES, wanted, strict=True) if not on] for wanted in
                                 itertools.product([True, False], repeat=4)], ids="-".join)  # fmt: skip
def test_one_override_flips_one_of_four_switches_and_all_sixteen_train(off, tmp_path):
    overrides = [f"{switch}=null" for switch in off]
    run = rv.train(small(), run=tmp_path, overrides=overrides, quiet=True, max_steps=2)
    rows = read_rows(run.metrics.path)
    assert [row["step"] for row in rows] == [1, 2]
    assert all(np.isfinite(row["loss"]) for row in rows)
    (phase,) = recipe_from(small(), overrides).phases
    on = {
        "mixing.mixup": phase.mixing.mixup,
        "mixing.cutmix": phase.mixing.cutmix,
        "augmentation.rand_augment": phase.augmentation.rand_augment,
        "augmentation.random_erasing": phase.augmentation.random_erasing,
    }
    assert [switch for switch in SWITCHES if on[switch] is None] == off
    assert recipe_from(run.recipe) == recipe_from(small(), overrides).resolved("cpu"), "read back from its own file"


def weights(run):
    return fingerprint(load_model(run.checkpoints / "last.safetensors"))


def test_a_resumed_run_with_other_workers_ends_with_the_same_weights(shards, tmp_path):
    recipe = small(
        objective={"name": "trades", "attack": {"steps": 1}},
        augmentation_schedule={"name": "linear_warmup", "until": 0.5},
        augmentation={"name": "canonical", "rand_augment": None},
        repeats=1,
        epochs=2,
        batch_size=400,
        generated=shards,
    )
    whole = rv.train(recipe, run=tmp_path / "whole", quiet=True)
    for workers, steps in ((2, 2), (0, 2), (1, None)):
        broken = rv.train(
            recipe, run=tmp_path / "broken", overrides=[f"workers={workers}"], quiet=True, max_steps=steps
        )
    assert weights(whole) == weights(broken)
    assert whole.metrics.path.read_text() == broken.metrics.path.read_text()
    other = rv.train({**recipe, "seed": 1}, run=tmp_path / "other", quiet=True)
    assert weights(other) != weights(whole)


@pytest.mark.skipif(not Path("/proc").exists(), reason="needs Linux's list of processes")
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGKILL, marks=pytest.mark.slow)])
def test_no_worker_outlives_the_training(number, tmp_path):
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(small(epochs=300, workers=2, augmentation="light")))
    process = subprocess.Popen(
        [*ROBUSTVIT, "train", "small.yaml", "--run", "run", "-o", "checkpoints.seconds=0"],
        cwd=tmp_path,
        env=ENVIRONMENT,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    wait_for(lambda: len(read_rows(tmp_path / "run" / "metrics.jsonl")) > 2, process)
    workers = children_of(process.pid)
    assert len(workers) == 2
    if number == signal.SIGINT:
        os.killpg(process.pid, number)  # as a terminal sends it: to everyone
    else:
        process.send_signal(number)
    _, err = process.communicate()
    assert process.returncode == (130 if number == signal.SIGINT else -number)
    assert "Traceback" not in err
    while any(Path(f"/proc/{worker}").exists() for worker in workers):
        time.sleep(0.1)


def children_of(pid):
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def test_soft_labels_are_refused_where_an_index_is_needed():
    from robustvit.training.opening import open_recipe

    attack = {"name": "pgd", "steps": 1}
    for loss in ("cw", "dlr"):
        recipe = small(objective={"name": "adversarial", "attack": {**attack, "loss": loss}})
        with pytest.raises(UserError, match=r"^recipe.mixing: the objective 'adversarial' takes no soft labels \("):
            open_recipe(recipe_from(recipe))
        open_recipe(recipe_from(recipe, ["mixing.mixup=null", "mixing.cutmix=null"]))
    for objective in ("standard", {"name": "adversarial", "attack": attack}, {"name": "trades", "attack": attack}):
        model = open_recipe(recipe_from(small(objective=objective)))[2]
        assert all(parameter.grad is None for parameter in model.parameters()), "tried on a copy"


def test_a_phase_has_batches_of_its_own(shards, tmp_path):
    phases = [{"name": "mixed", "generated": shards}, {"name": "plain", "augmentation": None, "mixing": None}]
    recipe = small(phases=phases, batch_size=500)
    run = rv.train(recipe, run=tmp_path / "run", quiet=True)
    assert [row["phase"] for row in read_rows(run.metrics.path)] == ["mixed"] * 3 + ["plain"] * 2
    first, second = recipe_from(run.recipe).phases
    assert (first.generated.ratio, second.generated) == (0.35, None)
    assert second.augmentation is None
    shown = CliRunner().invoke(app, ["check", str(run.recipe)]).output
    assert "phase   mixed: 1 epochs, 3 steps of 500 images, 35 % of them generated" in shown
    assert "phase   plain: 1 epochs, 2 steps of 500 images\n" in shown


@pytest.mark.parametrize(("step", "mixing"), [(0, "null"), (3, "{cutmix: null}")])
def test_show_batch_writes_a_picture(step, mixing, shards, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    override = ["-o", "augmentation=canonical", "-o", f"mixing={mixing}", "-o", "repeats=1"]
    path = shards["data"]["path"]
    override += ["-o", f"generated={{data: {{name: generated, path: {path}}}, ratio: 0.5}}"]
    result = CliRunner().invoke(app, ["check", "digits/standard", *override, "--show-batch", "--step", str(step)])
    assert result.exit_code == 0, result.output
    assert "batch   digits-standard-batch.png" in result.output
    assert "50 % of them generated" in result.output
    with Image.open(tmp_path / "digits-standard-batch.png") as picture:
        colours = {colour for _, colour in picture.convert("RGB").getcolors(1 << 20)}
        assert picture.size[0] > 1000
    assert {(0xE0, 0x7B, 0x00), (0x8A, 0x8A, 0x8A)} <= colours, "frames of real and of generated images"


def test_labels_in_words():
    assert label_text(torch.tensor(7)) == "7"
    assert label_text(torch.tensor([0.0, 0.25, 0.0, 0.75])) == "3 (0.75) + 1 (0.25)"

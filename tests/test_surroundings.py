"""Surroundings that a command may meet: killed processes, devices, other languages, other systems."""

import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import robustvit as rv
from robustvit.cli.main import app
from robustvit.core.errors import UserError
from robustvit.core.files import write_text
from robustvit.core.run import command
from robustvit.data.open import images_from
from robustvit.reporting import report
from robustvit.training import train
from shards import random_images, write_shard
from test_report import make_run, metrics_rows, result

runner = CliRunner()
SMALL = ["epochs=1", "model.settings.depth=1", "model.settings.embed_dim=12", "validation.hold_out=0"]


def test_leftovers_of_killed_processes_are_removed_and_no_others(tmp_path):
    process = multiprocessing.get_context("fork").Process(target=int)
    process.start()
    process.join()
    dead, mine = tmp_path / f".state.pt.{process.pid}.tmp", tmp_path / f".other.json.{os.getpid()}.tmp"
    users = tmp_path / ".notes.tmp"
    for path in (dead, mine, users):
        path.write_text("half")
    write_text(tmp_path / "a.txt", "whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([mine.name, users.name, "a.txt"])


def test_a_page_follows_a_link_and_refuses_what_is_no_file(tmp_path):
    run = make_run(tmp_path / "run", rows=metrics_rows(), evaluation=result())
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "page.html"
    link.symlink_to("elsewhere/real.html")
    for _ in range(2):  # to a page that isn't there yet, and to one that is
        report([run], link)
        assert link.is_symlink()
        assert "robustness" in (tmp_path / "elsewhere" / "real.html").read_text()
    os.mkfifo(tmp_path / "pipe.html")
    for target in (tmp_path / "pipe.html", Path("/dev/null")):
        with pytest.raises(UserError, match="where a file is to be written"):
            report([run], target)
    assert Path("/dev/null").is_char_device()


def command(*arguments: str, code: str = "pass", **environment: str) -> subprocess.CompletedProcess[str]:
    start = f"{code}; from robustvit.cli.main import main; main()"
    paths = {"PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(
        [sys.executable, "-c", start, *arguments],
        capture_output=True, text=True, encoding="utf-8", errors="replace", env={**os.environ, **paths, **environment},
    )  # fmt: skip


@pytest.mark.parametrize("name", ["train", "evaluate", "report", "list", "check"])
def test_without_file_locks_every_command_names_wsl(name):
    arguments = {"list": ["recipes"], "report": ["run"]}.get(name, ["digits/standard"])
    done = command(name, *arguments, code="import sys; sys.modules['fcntl'] = None")
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert "WSL" in done.stderr


@pytest.mark.parametrize("environment", [{"LANG": "C", "LC_ALL": "C"}, {"PYTHONIOENCODING": "ascii"}])
def test_a_name_in_unicode_works_in_any_locale(environment, tmp_path):
    run = make_run(tmp_path / "größe-模型", rows=metrics_rows(), evaluation=result())
    done = command("report", str(run), **environment)
    assert done.returncode == 0, done.stderr
    assert (run / "report.html").is_file()
    if "LANG" not in environment:
        return
    (tmp_path / "nom-é.yaml").write_text("name: größe\nextends: digits/standard\n", encoding="utf-8")
    done = command("check", str(tmp_path / "nom-é.yaml"), **environment)
    assert done.returncode == 0, done.stderr


def test_names_that_look_like_markup_are_printed_as_they_are(capsys):
    from robustvit.cli.table import print_results
    from robustvit.core.progress import Progress

    checkpoint = {"path": None, "name": "[/b] mine [red]", "sha256": "abc"}
    print_results([result(title="[/i]", checkpoint=checkpoint, notes=("[/u]",))])
    shown = capsys.readouterr().out
    for name in ("[/b] mine [red]", "[/i]", "[/u]"):
        assert name in shown
    with Progress("[/b]", 3) as progress:
        progress.update(1)


def test_a_live_progress_line_shows_markup_as_it_is(monkeypatch, capsys):
    from robustvit.core.progress import Progress

    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with Progress("[/b]", 3) as progress:
        progress.update(1, loss="[/i]")
    shown = capsys.readouterr().err
    assert "[/b]" in shown
    assert "[/i]" in shown


@pytest.mark.parametrize("device", ["images", "labels", "model", "dataset"])
def test_tensors_without_numbers_are_refused(device, digits, trained):
    x, y = digits[0][:4], digits[1][:4]
    with torch.device("meta"):
        model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 10))
    data = {
        "images": (x.to("meta"), y),
        "labels": (x, y.to("meta")),
        "dataset": images_from(torch.utils.data.TensorDataset(x.to("meta"), y)),
    }
    with pytest.raises(UserError, match="meta device"):
        rv.evaluate(model if device == "model" else trained, data.get(device, (x, y)), suite="fgsm",
                    threat=rv.LpBall("inf", 0.1), quiet=True)  # fmt: skip


def test_validation_shards_stand_in_for_missing_test_shards(tmp_path, monkeypatch):
    monkeypatch.setenv("ROBUSTVIT_CACHE", str(tmp_path / "cache"))
    write_shard(tmp_path / "mine" / "train-0.tar", random_images(3, (8, 8)), [0, 1, 2])
    val = random_images(2, (8, 8), seed=1)
    write_shard(tmp_path / "mine" / "val-0.tar", val, [1, 0])
    opened = images_from(f"{tmp_path}/mine/{{split}}-*.tar", "test")
    assert np.array_equal(opened.take(torch.arange(2))[0].permute(0, 2, 3, 1).numpy(), val)
    assert "val-*.tar" in opened.title
    (tmp_path / "mine").rename(tmp_path / "cifar10")
    cifar = images_from({"name": "cifar10", "root": str(tmp_path / "cifar10")}, "test")
    assert len(cifar) == 2
    assert "val-*.tar" in cifar.title
    test = random_images(1, (8, 8), seed=2)
    write_shard(tmp_path / "cifar10" / "test-0.tar", test, [5])
    assert len(images_from({"name": "cifar10", "root": str(tmp_path / "cifar10")}, "test")) == 1, "test comes first"


def test_a_state_of_another_run_is_not_taken_for_this_ones(tmp_path):
    recipe = [*SMALL, "epochs=2"]
    for seed in (0, 1):
        train("digits/standard", run=tmp_path / str(seed), overrides=[*recipe, f"seed={seed}"], quiet=True, max_steps=2)
    for path in (tmp_path / "1" / "checkpoints").glob("state-*.pt"):
        path.unlink()
    (foreign,) = (tmp_path / "0" / "checkpoints").glob("state-*.pt")
    foreign.rename(tmp_path / "1" / "checkpoints" / foreign.name)
    with pytest.raises(UserError, match=f"{foreign.name}: made by a recipe with another seed") as caught:
        train("digits/standard", run=tmp_path / "1", overrides=[*recipe, "seed=1"], quiet=True, max_steps=2)
    assert len(str(caught.value).splitlines()) == 1
    train("digits/standard", run=tmp_path / "0", overrides=[*recipe, "log_every=3"], quiet=True, max_steps=1)


def test_a_state_that_holds_something_else_is_named(tmp_path):
    recipe = [*SMALL, "epochs=2"]
    run = train("digits/standard", run=tmp_path, overrides=recipe, quiet=True, max_steps=1)
    (path,) = run.checkpoints.glob("state-*.pt")
    state = torch.load(path, weights_only=True)
    from robustvit.training.recorder import Recorder

    for key, value in (("step", -1), ("phase", 7), ("step", 10**6), ("task", {}), ("meter", 3), ("recipe", None)):
        Recorder(run, {}, quiet=True).save_state(5, {**state, key: value})
        with pytest.raises(UserError, match="state-000000005") as caught:
            train("digits/standard", run=tmp_path, overrides=recipe, quiet=True, max_steps=1)
        assert len(str(caught.value).splitlines()) == 1
        next(run.checkpoints.glob("state-000000005*")).unlink()


def test_a_data_worker_killed_by_the_system_ends_in_one_line_and_the_same_command_goes_on(tmp_path, monkeypatch):
    options = [
        "epochs=1",
        "model.settings.depth=1",
        "model.settings.embed_dim=12",
        "validation.hold_out=0",
        "workers=1",
    ]
    arguments = [part for option in options for part in ("-o", option)]
    train_it = ["train", "digits/standard", "--run", str(tmp_path / "run"), *arguments]
    with monkeypatch.context() as patched:
        patched.setattr("robustvit.data.feed._ignore_signals", lambda worker: os.kill(os.getpid(), signal.SIGKILL))
        failed = runner.invoke(app, train_it)
    assert failed.exit_code == 2
    assert len(failed.output.splitlines()) == 1
    assert "a data worker died" in failed.output
    assert "the same command resumes" in failed.output
    done = runner.invoke(app, train_it)
    assert done.exit_code == 0, done.output
    assert (tmp_path / "run" / "checkpoints" / "last.safetensors").is_file()


def test_a_checkpoint_that_a_run_lacks_is_refused_with_those_it_has(tmp_path):
    train("digits/standard", run=tmp_path, overrides=SMALL, quiet=True)
    refused = runner.invoke(app, ["evaluate", str(tmp_path), "--checkpoint", "best"])
    assert refused.exit_code == 2
    assert "no checkpoint 'best' (there: last)" in refused.output
    assert len(refused.output.splitlines()) == 1


@pytest.mark.parametrize(
    ("program", "shown"),
    [
        ("/usr/bin/robustvit", "robustvit report 'a b'"),
        ("/lib/robustvit/__main__.py", "robustvit report 'a b'"),
        ("/lib/mine/__main__.py", "python -m mine report 'a b'"),
        ("script.py", "script.py report 'a b'"),
    ],
)
def test_a_command_can_be_copied(monkeypatch, program, shown):
    monkeypatch.setattr("sys.argv", [program, "report", "a b"])
    assert command() == shown

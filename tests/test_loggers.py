"""Laws of the loggers: every number of metrics.jsonl arrives, training isn't changed, nothing is imported early."""

import ast
import contextlib
import re
import sys
import time
from pathlib import Path

import pytest

import robustvit as rv
from robustvit.core.errors import UserError
from robustvit.core.journal import read_rows
from robustvit.training import recipe_from
from robustvit.training.loggers import values_of
from test_training import TINY, final

WANDB = {"name": "wandb", "mode": "offline"}


def logged_values(run: Path) -> set[tuple[str, int, float]]:
    """(name, step, value) of all numbers in metrics.jsonl."""
    rows = read_rows(run / "metrics.jsonl")
    return {(name, row["total_step"], value) for row in rows for name, value in values_of(row).items()}


def test_tensorboard_shows_every_number_once_however_often_the_run_was_killed(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    recipe = {**TINY, "loggers": "tensorboard"}
    rv.train(recipe, run=tmp_path, quiet=True, max_steps=5)
    state = {path.name: path.read_bytes() for path in (tmp_path / "checkpoints").glob("state-*.pt")}
    rv.train(recipe, run=tmp_path, quiet=True, max_steps=7)
    for path in (tmp_path / "checkpoints").glob("state-*.pt"):
        path.unlink()
    for name, data in state.items():  # as if killed before the second state was saved
        (tmp_path / "checkpoints" / name).write_bytes(data)
    rv.train(recipe, run=tmp_path, quiet=True)
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    seen = [(name, e.step, e.value) for name in events.Tags()["scalars"] for e in events.Scalars(name)]
    assert len(seen) == len(set(seen))
    assert {(name, step) for name, step, _ in seen} == {(name, step) for name, step, _ in logged_values(tmp_path)}
    values = {(name, step): value for name, step, value in logged_values(tmp_path)}
    assert all(value == pytest.approx(values[name, step], rel=1e-6) for name, step, value in seen)
    assert {"train/loss", "train/lr", "validation/robust_accuracy", "train/epoch"} <= {name for name, _, _ in seen}


def numbers(data):
    """Names and values in wandb's file: a name, a tag, the length of the value's text, the text."""
    for found in re.finditer(rb"([\w/]+)\x82\x01(.)", data, re.DOTALL):
        text = data[found.end() : found.end() + found[2][0]]
        with contextlib.suppress(ValueError):  # other settings than numbers stand there, too
            yield found[1].decode(), float(text)


def test_wandb_offline_keeps_every_number_in_one_run(tmp_path, capsys):
    pytest.importorskip("wandb")
    recipe, logged = {**TINY, "loggers": [WANDB]}, tmp_path / "logged"
    rv.train(recipe, run=logged, quiet=True, max_steps=5)
    rv.train(recipe, run=logged, quiet=True)
    assert "wandb sync" in capsys.readouterr().err
    files = sorted(logged.glob("wandb/offline-run-*/run-*.wandb"))
    assert len({file.name for file in files}) == 1  # both sessions belong to one run
    wanted = {(name, value) for name, _, value in logged_values(logged)}
    for _ in range(1000):  # wandb's own process writes on after the run has finished
        kept = set(numbers(b"".join(file.read_bytes() for file in files)))
        if wanted <= kept:
            break
        time.sleep(0.1)
    assert wanted <= kept
    plain = rv.train(TINY, run=tmp_path / "plain", quiet=True).path
    assert (logged / "metrics.jsonl").read_text() == (plain / "metrics.jsonl").read_text()
    assert final(logged) == final(plain)


def test_what_is_not_finite_is_left_out():
    row = {"total_step": 3, "step": 3, "epoch": 0.5, "phase": "main", "kind": "train", "loss": None, "lr": 0.1}
    assert values_of(row) == {"train/epoch": 0.5, "train/lr": 0.1}


def test_loggers_may_change_when_a_run_goes_on(tmp_path):
    pytest.importorskip("tensorboard")
    rv.train(TINY, run=tmp_path, quiet=True, max_steps=1)
    rv.train({**TINY, "loggers": ["tensorboard"]}, run=tmp_path, quiet=True, max_steps=1)
    assert list((tmp_path / "tensorboard").iterdir())


@pytest.mark.parametrize("package", ["tensorboard", "wandb"])
def test_a_package_that_is_missing_is_named(package, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError, match=rf"{package} is not installed; pip install 'robustvit\[{package}\]'"):
        rv.train({**TINY, "loggers": [package]}, run=tmp_path, quiet=True)


def test_wandb_without_an_account_says_what_to_do(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")

    def refuse(**settings):
        raise wandb.errors.UsageError("No API key configured.")

    monkeypatch.setattr(wandb, "init", refuse)
    with pytest.raises(UserError, match="No API key configured.*wandb login.*offline"):
        rv.train({**TINY, "loggers": ["wandb"]}, run=tmp_path, quiet=True)


def test_an_unknown_logger_is_refused_at_once():
    with pytest.raises(UserError, match=r"recipe\.loggers\.0: no logger 'tensorbord'; did you mean 'tensorboard'"):
        recipe_from({**TINY, "loggers": ["tensorbord"]})


def test_no_logger_is_imported_before_it_is_named():
    for path in Path(rv.__file__).parent.rglob("*.py"):
        imports = [ast.unparse(node) for node in ast.parse(path.read_text()).body if "Import" in type(node).__name__]
        assert not re.search(r"tensorboard|wandb", " ".join(imports)), path

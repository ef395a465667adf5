"""What goes wrong with several processes: refused before work begins, said once, and nobody left behind."""

import os
import signal
import sys
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.distributed import TCPStore

import robustvit.core.world as worlds
import robustvit.training.sweep as sweeping
from robustvit.cli.launch import say_once
from robustvit.core.config import merge
from robustvit.core.errors import UserError
from robustvit.core.processes import forwarding_signals, run_processes
from robustvit.core.world import World, own_device
from robustvit.models import load_model, save_model
from robustvit.models.weights import extra_state, load_extra_state
from robustvit.training import recipe_from, train
from robustvit.training.classify import Classify, ShardedClassify
from robustvit.training.parts import Parts, parts_warning
from robustvit.training.recorder import NullRecorder, Recorder
from robustvit.training.sweep_grid import sweep_from
from test_processes import SHORT
from test_training import TINY

training = sys.modules["robustvit.training.train"]
"""The module, whose name in its package is that of its function."""
PLAIN = {"validation": {"hold_out": 0}, "checkpoints": {"select": "last"}, "ema": {"decay": 0.9}}
RECIPE = merge(merge(TINY, SHORT), {"batch_size": 64, "accumulate": 2, **PLAIN})
FACTORS = {"attention_factors": [0.5]}


def do_some(*, world: World, folder: str) -> None:
    root = Path(folder)
    train({**RECIPE, "workers": 1}, root / "workers", quiet=True, world=world, max_steps=2)
    start_sharded(world, root)
    fail_twice(world, root)


def start_sharded(world: World, root: Path) -> None:
    recipe = recipe_from({**RECIPE, "shard": True, "start": {"weights": str(root / "begin.safetensors")}})
    task = ShardedClassify(recipe, NullRecorder(), world)
    task.initialize()
    task.begin_phase(0)
    assert task.average is not None
    for name, model in {"average": task.weights(), "model": task._whole(task.model)}.items():
        if world.is_first:
            save_model(model, root / f"{name}.safetensors")
    (root / f"warning-{world.rank}.txt").write_text(parts_warning(task.parts, 2, task.model))


def fail_twice(world: World, root: Path) -> None:
    """An error that all processes catch, then one that goes away without a word."""
    with pytest.raises(UserError), world.together():
        raise UserError("an old problem")
    world.barrier()
    if world.is_first:
        worlds._disconnect()
        return
    with pytest.raises(Exception) as found, world.together():
        world.barrier()
    (root / "failure.txt").write_text(f"{type(found.value).__name__}: {found.value}")


@pytest.fixture(scope="module")
def some(tmp_path_factory):
    folder = tmp_path_factory.mktemp("faults")
    model = recipe_from(RECIPE).model.build()
    load_extra_state(model, FACTORS)
    save_model(model, folder / "begin.safetensors")
    run_processes(2, do_some, {"folder": str(folder)}, folder, connected=True)
    return folder


def test_processes_may_have_workers_of_their_own(some):
    assert list(some.glob("workers/checkpoints/state-000000002-*"))


def test_a_sharded_network_starts_from_weights_and_keeps_their_factors(some):
    begin, model, average = (load_model(some / f"{name}.safetensors") for name in ("begin", "model", "average"))
    x = torch.rand(4, 3, 8, 8)
    assert extra_state(model) == extra_state(average) == FACTORS
    assert torch.equal(model(x), begin(x))
    assert torch.equal(average(x), begin(x))


def test_a_sharded_run_says_that_its_weights_differ_and_names_no_remedy(some):
    text = "shard on 2 processes: weights differ from those of one process by rounding"
    assert (some / "warning-0.txt").read_text() == text


def test_an_error_of_before_is_not_taken_for_a_later_one(some):
    kind, _, text = (some / "failure.txt").read_text().partition(": ")
    assert kind != "UserError", text
    assert "an old problem" not in text


def test_what_shards_cannot_do_is_refused_on_one_process_too(tmp_path):
    with pytest.raises(UserError, match="recipe.shard: the optimizer 'adamp' does not work on shards"):
        train({**RECIPE, "shard": True, "optimizer": {"opt": "adamp"}}, tmp_path / "run", quiet=True, max_steps=1)


def test_an_error_before_the_first_step_is_passed_on(tmp_path, monkeypatch):
    """Such as of a logger, while the other processes wait for the first step."""
    inside = []
    monkeypatch.setattr(World, "together", lambda self: noting(inside))
    monkeypatch.setattr(Recorder, "opened", lambda *arguments: failing())
    with pytest.raises(UserError, match="no logger here"):
        train(RECIPE, tmp_path, quiet=True, max_steps=1)
    assert [str(error) for error in inside] == ["no logger here"]


def noting(errors: list):
    from contextlib import contextmanager

    @contextmanager
    def together():
        try:
            yield
        except UserError as error:
            errors.append(error)
            raise

    return together()


def failing():
    raise UserError("no logger here")


def generated(path: Path, value: int) -> dict:
    path.mkdir(exist_ok=True)
    np.save(path / "images-0.npy", np.full((20, 8, 8, 3), value, np.uint8))
    np.save(path / "labels-0.npy", np.arange(20) % 10)
    return {"generated": {"data": {"name": "generated", "path": str(path)}, "ratio": 0.5}}


def digest(settings: dict) -> str:
    return Classify(recipe_from(settings), NullRecorder(), World()).fingerprint()


def test_other_generated_images_are_noticed(tmp_path):
    plain = digest(RECIPE)
    assert len(plain) == 64, "as states of runs without generated images have it"
    phases = {"phases": [{"name": "a"}, {"name": "b", **generated(tmp_path / "made", 1)}]}
    before = digest({**RECIPE, **phases})
    assert before.startswith(plain)
    run = tmp_path / "run"
    train({**RECIPE, **phases}, run, quiet=True, max_steps=1)
    generated(tmp_path / "made", 2)
    assert digest({**RECIPE, **phases}) != before
    with pytest.raises(UserError, match=f"with {tmp_path / 'made'} holds other data now"):
        train({**RECIPE, **phases}, run, quiet=True)
    generated(tmp_path / "made", 1)
    train({**RECIPE, **phases}, run, quiet=True)
    generated(tmp_path / "made", 2)
    with pytest.raises(UserError, match="holds other data now than when it was trained"):  # a sweep would mix them
        train({**RECIPE, **phases}, run, quiet=True)


@pytest.mark.parametrize("what", ["versions", "training data"])
def test_processes_that_differ_are_refused(what, tmp_path, monkeypatch):
    """Rank 0 of two; the other one's answers are its own but for one."""

    def gather(self, value):
        if what == "versions" and isinstance(value[0], dict) and "torch" in value[0]:
            return [value, ({**value[0], "torch": "1.0"}, "elsewhere")]
        is_digest = isinstance(value, tuple) and isinstance(value[0], str) and len(value[0]) == 8
        return [value, ("other", "elsewhere") if what == "training data" and is_digest else value]

    monkeypatch.setattr(World, "gather", gather)
    monkeypatch.setattr(World, "broadcast", lambda self, value: value)
    match = (
        r"versions: process 0 .*\n.*torch: .*1\.0" if what == "versions" else "training data: .*'other' in process 1"
    )
    with pytest.raises(UserError, match=match):
        training._begin(recipe_from(RECIPE), NullRecorder(), World(0, 2), began=0.0)


def test_all_phases_are_cut_before_the_first_one_trains(tmp_path):
    phases = [{"name": "a", "batch_size": 128}, {"name": "b", "batch_size": 9}]
    with pytest.raises(UserError, match="phase 'b': recipe.accumulate: a batch of 9 images can't be cut into 4 parts"):
        train({**RECIPE, "accumulate": 4, "phases": phases}, tmp_path / "run", quiet=True, max_steps=1)
    assert not (tmp_path / "run").exists()


def test_warnings_of_all_phases_come_first(tmp_path, capsys):
    norms = {"name": "wideresnet", "num_classes": 10, "settings": {"depth": 10, "width": 1}}
    phases = [{"name": "a", "batch_size": 128}, {"name": "b", "batch_size": 16}]
    changed = {**RECIPE, "model": norms, "phases": phases, "objective": "standard", "ema": None}
    train(changed, tmp_path / "run", max_steps=1)
    assert "warning: 8 images in each of the 2 parts of a batch" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_goes_on_to_the_processes(number):
    ended, received = [], []
    running = SimpleNamespace(is_alive=lambda: True, terminate=lambda: ended.append("running"))
    gone = SimpleNamespace(is_alive=lambda: False, terminate=lambda: ended.append("gone"))
    with forwarding_signals([running, gone], received):
        os.kill(os.getpid(), number)
    assert (ended, received) == (["running"], [number])


def test_two_signals_of_one_keystroke_are_one(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(training, "time", SimpleNamespace(monotonic=lambda: now[0]))
    with training._catching_signals() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.signal == signal.SIGINT
        now[0] += 2
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.fixture
def two_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    empty = torch.empty

    def anywhere(*size, device=None, **settings):
        return empty(*size, device=None if "cuda" in str(device) else device, **settings)

    monkeypatch.setattr(worlds.torch, "empty", anywhere)


def test_each_process_has_a_gpu_of_its_own(two_gpus, monkeypatch):
    monkeypatch.setattr(training, "run_processes", None)
    assert [own_device("auto", number) for number in (0, 1)] == ["cuda:0", "cuda:1"]
    assert (own_device("cpu", 5), own_device("cuda:0", 5)) == ("cpu", "cuda:0")
    with pytest.raises(UserError, match="3 processes need a GPU each, and this machine has 2"):
        own_device("auto", 2)
    with pytest.raises(UserError, match="3 processes need a GPU each"):
        train(RECIPE, "nowhere", processes=3)


def test_runs_of_a_sweep_are_trained_and_judged_on_the_gpu_of_their_process(two_gpus, tmp_path, monkeypatch):
    seen = []
    run = SimpleNamespace(path=tmp_path, checkpoint=lambda: tmp_path)
    monkeypatch.setattr(sweeping, "load_model", lambda path: None)
    monkeypatch.setattr(sweeping, "train", lambda *a, world, **settings: seen.append(world.device) or run)
    monkeypatch.setattr(sweeping, "evaluate", lambda *a, device, **settings: seen.append(device))
    sweep = sweep_from("digits/trades", ["seed=0,1"])
    for world in (World(0, 2), World(1, 2), World(0, 2, "cuda:1")):  # the last as a launcher has it
        sweeping._run_share(world=world, sweep=sweep, root=tmp_path, is_first=False)
    assert seen == ["cuda:0"] * 2 + ["cuda:1"] * 4
    monkeypatch.setattr(sweeping, "_open_point", lambda *arguments: None)
    monkeypatch.setattr(sweeping, "run_processes", None)
    with pytest.raises(UserError, match="3 processes need a GPU each"):
        sweeping.run_sweep(sweep, tmp_path, processes=3)


def test_one_of_the_processes_of_torchrun_says_what_all_have_to_say(monkeypatch, capsys):
    store = TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=5))
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(store.port))
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    for text in ("robustvit: a", "robustvit: a", "robustvit: process 1 (there): a", "robustvit: b"):
        say_once(text)
    assert capsys.readouterr().err.split() == ["robustvit:", "a", "robustvit:", "b"]
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    say_once("robustvit: a")
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE")
    say_once("robustvit: b")
    assert capsys.readouterr().err.split() == ["robustvit:", "a", "robustvit:", "b"], (
        "another attempt, another launcher"
    )


def test_parts_of_a_whole_network_have_their_remedy():
    parts = Parts.of(48, 6, World(0, 2))
    assert "accumulate=8 and gradient_sum=exact keep them the same" in parts_warning(parts, 6, torch.nn.Linear(1, 1))

"""Networks spread over processes (FSDP2): as a whole one to rounding, refused where they can't work."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from robustvit.core.config import merge
from robustvit.core.errors import UserError
from robustvit.core.processes import run_processes
from robustvit.core.run import RunFolder
from robustvit.core.world import World
from robustvit.models.modes import attacking
from robustvit.models.sharding import gathered, is_sharded
from robustvit.training import recipe_from, train
from robustvit.training.opening import check_shardable
from robustvit.training.recorder import Recorder, state_paths
from test_processes import SHORT
from test_training import TINY

SETTINGS = merge(merge(TINY, SHORT), {"epochs": 2, "ema": {"decay": 0.9}, "around_step": "awp", "clip_norm": 1.0})
PLAIN = {"model": {"settings": {"drop_rate": 0.0, "drop_path_rate": 0.0, "qkv_bias": False}}}
"""The gradient of a key's bias is zero but for rounding, which lion makes a whole step of."""


def recipe(opt: str, **more) -> dict:
    return merge(SETTINGS, {**PLAIN, "name": opt, "optimizer": {"opt": opt, "lr": 1e-3}, **more})


def both(*, world: World, folder: str, names: list[str]) -> None:
    for name in names:
        for shard in (False, True):
            train(recipe(name, shard=shard), Path(folder) / f"{name}-{shard}", quiet=True, world=world)
    for stopped in ("stopped", "again"):
        train(recipe("adamw", shard=True), Path(folder) / stopped, quiet=True, world=world, max_steps=5)


def resume(*, world: World, folder: str) -> None:
    train(recipe("adamw", shard=True), Path(folder) / "again", quiet=True, world=world)


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "checkpoints/last.safetensors")


def assert_close(run: Path, other: Path, limit: float = 1e-4) -> None:
    one, two = weights(run), weights(other)
    assert one.keys() == two.keys()
    for key in one:
        assert torch.allclose(one[key], two[key], atol=limit), key


@pytest.mark.slow
def test_a_sharded_network_trains_as_a_whole_one_and_resumes_on_other_numbers_of_processes(tmp_path):
    names = ["sgd", "adamw", "lion", "lamb"]
    run_processes(2, both, {"folder": str(tmp_path), "names": names}, tmp_path, connected=True)
    for name in names:  # a sign flips where a gradient is zero but for rounding
        assert_close(tmp_path / f"{name}-False", tmp_path / f"{name}-True", 5e-3 if name == "lion" else 1e-4)
    torch.set_num_threads(1)
    (stopped,) = state_paths(RunFolder(tmp_path / "stopped"))
    assert [path.suffix for path in sorted(stopped.iterdir())] == [".safetensors", ".safetensors", ".pt"]
    train(recipe("adamw", shard=True), tmp_path / "stopped", quiet=True)
    train(recipe("adamw", shard=True), tmp_path / "again", quiet=True, max_steps=4)
    run_processes(2, resume, {"folder": str(tmp_path)}, tmp_path, connected=True)
    for run in ("stopped", "again"):
        assert_close(tmp_path / run, tmp_path / "adamw-True")
    kinds = [path.suffix for path in state_paths(RunFolder(tmp_path / "again"))]
    assert kinds == [".parts", ".pt"], "one process writes one file"


@pytest.mark.slow
def test_kills_in_the_middle_of_a_save_leave_the_state_before(tmp_path):
    """All processes at once, five times, while parts are being written."""
    options = ["shard=true", "optimizer.opt=adamw", "accumulate=2", "checkpoints.seconds=0", "epochs=1"]
    given = [word for option in options for word in ("-o", option)]
    command = [sys.executable, "-m", "robustvit", "train", "digits/trades", *given, "--processes", "2", "--run"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([*command, str(tmp_path / "whole")], env=environment, check=True)
    run, chance, cut = RunFolder(tmp_path / "killed"), random.Random(0), 0
    for _ in range(5):
        before = state_paths(run)
        process = subprocess.Popen([*command, str(run.path)], env=environment, start_new_session=True)
        while state_paths(run)[:1] == before[:1]:
            assert process.poll() is None
            time.sleep(0.01)
        growing = run.checkpoints / ".state.parts"
        while not growing.exists():
            assert process.poll() is None
            time.sleep(0.001)
        time.sleep(0.01 * chance.random())
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        cut += growing.exists()
        newest = state_paths(run)[0]
        state = Recorder(run, {}, quiet=True).load_state()
        assert state is not None
        assert state["path"] == str(newest), "what has its name is whole"
    assert cut, "some were killed in the middle"
    subprocess.run([*command, str(run.path)], env=environment, check=True)
    assert_close(run.path, tmp_path / "whole")
    assert not (run.checkpoints / ".state.parts").exists()


def search(*, world: World, folder: str) -> None:
    """Gradients of the pixels, and how often blocks are gathered for them."""
    from robustvit.models.sharding import _sharded, shard

    torch.manual_seed(0)
    model = recipe_from(recipe("adamw", model={"settings": {"depth": 3}})).model.build().eval()
    x = torch.rand(4, 3, 8, 8, requires_grad=True)
    (expected,) = torch.autograd.grad(model(x).square().sum(), x)
    state = {key: value.clone() for key, value in model.state_dict().items()}
    shard(model, world)
    assert is_sharded(model)
    groups, gathered_at_once = [module._get_fsdp_state()._fsdp_param_group for module in _sharded(model)], []
    hidden = model.backbone.blocks[0].mlp.fc1
    hidden.register_forward_hook(lambda *_: gathered_at_once.append(sum(group.is_unsharded for group in groups)))
    with attacking(model, "eval"):
        for _ in range(3):
            (gradient,) = torch.autograd.grad(model(x).square().sum(), x)
            assert torch.equal(gradient, expected)
    model(x).square().sum().backward()
    assert gathered_at_once == [2, 4, 4, 2], "as plan counts: all blocks in a search, one and the root in a loss"
    back = gathered(model.state_dict())
    assert all(torch.equal(back[key], state[key]) for key in state)


@pytest.mark.slow
def test_searches_through_a_sharded_network_are_exact(tmp_path):
    run_processes(2, search, {"folder": str(tmp_path)}, tmp_path, connected=True)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"optimizer": {"opt": "adamp"}}, "'adamp' does not work on shards; use sgd, adamw, lion, lamb"),
        ({"optimizer": {"opt": "muon"}}, "'muon' does not work on shards"),
        ({"events": [{"name": "attention_scaling"}]}, "events"),
        ({"trainable": ["head.*"]}, "all parameters must train"),
        ({"compile": True}, "compile: false"),
        ({"model": {"name": "wideresnet", "settings": {"depth": 10, "width": 1}}}, "batch norms"),
    ],
)
def test_what_does_not_work_on_shards_is_refused(change, problem):
    checked = recipe_from(merge(TINY, {"shard": True, **change}))
    with pytest.raises(UserError, match=problem):
        check_shardable(checked, checked.model.build())

"""Networks spread over processes (FSDP2): as a whole one to rounding, refused where they can't work."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from robustvit.core.config import merge
from robustvit.core.errors import UserError
from robustvit.core.processes import run_processes
from robustvit.core.world import World
from robustvit.models.modes import attacking
from robustvit.models.sharding import gathered, is_sharded
from robustvit.training import recipe_from, train
from robustvit.training.classify import check_shardable
from test_processes import SHORT
from test_training import TINY

SETTINGS = merge(merge(TINY, SHORT), {"epochs": 2, "ema": {"decay": 0.9}, "around_step": "awp", "clip_norm": 1.0})
PLAIN = {"model": {"settings": {"drop_rate": 0.0, "drop_path_rate": 0.0}}}


def recipe(opt: str, **more) -> dict:
    return merge(SETTINGS, {**PLAIN, "name": opt, "optimizer": {"opt": opt, "lr": 1e-3}, **more})


def both(*, world: World, folder: str, names: list[str]) -> None:
    for name in names:
        for shard in (False, True):
            train(recipe(name, shard=shard), Path(folder) / f"{name}-{shard}", quiet=True, world=world)
    stopped = Path(folder) / "stopped"
    train(recipe("adamw", shard=True), stopped, quiet=True, world=world, max_steps=5)


@pytest.mark.slow
def test_a_sharded_network_trains_as_a_whole_one_and_resumes_on_one_process(tmp_path):
    names = ["sgd", "adamw", "lion", "lamb"]
    run_processes(2, both, {"folder": str(tmp_path), "names": names}, tmp_path, connected=True)
    for name in names:
        whole, sharded = (load_file(tmp_path / f"{name}-{s}/checkpoints/last.safetensors") for s in (False, True))
        assert whole.keys() == sharded.keys()
        limit = 5e-3 if name == "lion" else 1e-4  # a sign flips where a gradient is zero but for rounding
        for key in whole:
            assert torch.allclose(whole[key], sharded[key], atol=limit), (name, key)
    torch.set_num_threads(1)
    train(recipe("adamw", shard=True), tmp_path / "stopped", quiet=True)
    resumed = load_file(tmp_path / "stopped/checkpoints/last.safetensors")
    unbroken = load_file(tmp_path / "adamw-True/checkpoints/last.safetensors")
    assert all(torch.allclose(resumed[key], unbroken[key], atol=1e-4) for key in unbroken)


def search(*, world: World, folder: str) -> None:
    """Gradients of the pixels, and how often blocks are gathered for them."""
    from robustvit.models.sharding import shard

    torch.manual_seed(0)
    model = recipe_from(recipe("adamw")).model.build().eval()
    x = torch.rand(4, 3, 8, 8, requires_grad=True)
    (expected,) = torch.autograd.grad(model(x).square().sum(), x)
    state = {key: value.clone() for key, value in model.state_dict().items()}
    shard(model, world)
    assert is_sharded(model)
    with attacking(model, "eval"):
        for _ in range(3):
            (gradient,) = torch.autograd.grad(model(x).square().sum(), x)
            assert torch.equal(gradient, expected)
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

"""Several processes of one job: collectives, their order, and how a launch is read."""

import socket
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import nn

import robustvit.core.world
from robustvit.core.errors import UserError
from robustvit.core.world import World

PARTS = 8


def parts() -> list[list[torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [
        [part] for part in torch.randn(PARTS, 1000, generator=generator) * 10 ** torch.linspace(-3, 3, PARTS)[:, None]
    ]


def sum_and_talk(rank: int, size: int, folder: str) -> None:
    torch.set_num_threads(1)
    world = World(rank, size, init_method=f"file://{folder}/store")
    own = PARTS // size
    (total,) = world.sum(parts()[rank * own : (rank + 1) * own])
    double = [[part.double()] for (part,) in parts()[rank * own : (rank + 1) * own]]
    exact, fast = (world.sum(double, exact) for exact in (True, False))
    assert torch.allclose(exact[0], fast[0], rtol=1e-12, atol=1e-12)
    world.barrier()
    try:
        world.agree("same" if rank == 0 else "other", "recipe")
    except UserError as error:
        refused = str(error)
    world.agree(size, "size")
    assert len(robustvit.core.world._groups) == 1, "one connection for all of these"
    values = {
        "total": total,
        "gathered": world.gather({"rank": rank}),
        "broadcast": world.broadcast(f"from {rank}"),
        "refused": refused,
    }
    torch.save(values, f"{folder}/{rank}.pt")
    world.barrier()  # a process that ends while the other still talks would abort it


def test_two_processes_sum_to_the_bits_of_one(tmp_path):
    """Law 1 of a sum; law 4: in float64 a fast one agrees to 1e-12 (above)."""
    torch.multiprocessing.spawn(sum_and_talk, (2, str(tmp_path)), nprocs=2)
    (alone,) = World().sum(parts())
    assert not torch.equal(alone, torch.stack([part for (part,) in parts()]).sum(0)), "an order that matters"
    for rank in range(2):
        seen = torch.load(tmp_path / f"{rank}.pt")
        assert torch.equal(seen["total"], alone)
        assert seen["gathered"] == [{"rank": 0}, {"rank": 1}]
        assert seen["broadcast"] == "from 0"
        host = socket.gethostname()
        expected = f"recipe: 'same' in process 0 ({host}), 'other' in process 1 ({host}); they must agree"
        assert seen["refused"] == expected


def test_lower_levels_of_the_sum_belong_to_one_process():
    """Four processes: each sums its own parts, then neighbors are added."""
    for size in (2, 4, 8):
        own = PARTS // size
        each = [World().sum(parts()[rank * own : (rank + 1) * own]) for rank in range(size)]
        assert torch.equal(World().sum(each)[0], World().sum(parts())[0])


@pytest.fixture
def disconnected():
    yield
    robustvit.core.world._disconnect()


@pytest.mark.usefixtures("disconnected")
def test_messages_go_through_the_store_that_connected_the_processes(tmp_path, monkeypatch):
    monkeypatch.delattr(dist.ProcessGroup, "get_group_store", raising=False)  # as in older versions of torch
    robustvit.core.world._connect(World(0, 1, init_method=f"file://{tmp_path}/store"))
    robustvit.core.world._failed("a problem")
    assert robustvit.core.world._failure() == "a problem"


@pytest.mark.usefixtures("disconnected")
@pytest.mark.parametrize("is_handed_out", [True, False])
def test_the_store_of_another_librarys_group_is_used_where_torch_hands_it_out(monkeypatch, is_handed_out):
    store = dist.HashStore()
    if not is_handed_out:
        monkeypatch.delattr(dist.ProcessGroup, "get_group_store", raising=False)
    elif not hasattr(dist.ProcessGroup, "get_group_store"):
        pytest.skip("this version of torch keeps it")
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    robustvit.core.world._failed("a problem")
    assert robustvit.core.world._failure() == ("a problem" if is_handed_out else "")


def test_one_process_needs_no_connection(monkeypatch):
    monkeypatch.setattr(torch.distributed, "init_process_group", None)
    world = World()
    world.barrier()
    world.agree(1, "one")
    assert world.is_first
    assert world.gather(3) == [3]
    assert world.broadcast("x") == "x"
    assert world.shard(torch.arange(5)).tolist() == [0, 1, 2, 3, 4]
    assert World(1, 2).shard(torch.arange(5)).tolist() == [1, 3]


def launched(monkeypatch, device="cpu", **environment) -> World | str:
    from robustvit.cli.launch import launched_world

    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    try:
        return launched_world(device)
    except UserError as error:
        return str(error)


def test_the_environment_of_a_launch_is_read_or_refused(monkeypatch):
    there = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    patient = launched(monkeypatch, RANK="0", WORLD_SIZE="2", ROBUSTVIT_TIMEOUT="7", **there)
    assert patient == World(0, 2, timeout=timedelta(seconds=7))
    monkeypatch.delenv("ROBUSTVIT_TIMEOUT")
    assert launched(monkeypatch) == World()
    assert launched(monkeypatch, RANK="0", WORLD_SIZE="1") == World()
    assert launched(monkeypatch, RANK="1", WORLD_SIZE="2", LOCAL_RANK="1", **there) == World(1, 2)
    for environment, message in (
        ({"RANK": "", "WORLD_SIZE": "2"}, "RANK is ''"),
        ({"WORLD_SIZE": "2"}, "RANK isn't set"),
        ({"RANK": "0"}, "WORLD_SIZE isn't set"),
        ({"RANK": "zero", "WORLD_SIZE": "2"}, "RANK is 'zero'"),
        ({"RANK": "0", "WORLD_SIZE": "-2"}, "WORLD_SIZE is '-2'"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "a rank is 0 to WORLD_SIZE - 1"),
        ({"RANK": "0", "WORLD_SIZE": "0"}, "a rank is 0 to WORLD_SIZE - 1"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "start the processes with torchrun"),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "", "MASTER_PORT": "1"}, "not MASTER_ADDR"),
        ({"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "", **there}, "LOCAL_RANK is ''"),
        ({"RANK": "0", "WORLD_SIZE": "2", "ROBUSTVIT_TIMEOUT": "soon", **there}, "is 'soon' in the environment, give"),
        ({"RANK": "0", "WORLD_SIZE": "2", "ROBUSTVIT_TIMEOUT": "0", **there}, "ROBUSTVIT_TIMEOUT=0"),
    ):
        refused = str(launched(monkeypatch, **environment))
        assert message in refused
        assert "\n" not in refused


def test_a_device_is_chosen_and_tried(monkeypatch):
    from robustvit.core import world as devices

    assert devices.resolve_device() == "cpu"
    assert devices.resolve_device("auto", nn.Linear(1, 1)) == "cpu"
    model = nn.Linear(1, 1)
    monkeypatch.setattr(devices, "model_device", lambda model: "mps:0")
    monkeypatch.setattr(devices.torch, "empty", lambda *size, device: torch.zeros(1))
    assert devices.resolve_device("auto", model) == "mps:0"
    monkeypatch.undo()
    for name in ("mps", "cuda:7", "nowhere"):
        with pytest.raises(UserError, match=f"device '{name}' can't be used"):
            devices.resolve_device(name)

"""Training states written in parts: read back whole by any number of processes, never half, damage named."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from robustvit.core.errors import UserError
from robustvit.core.run import RunFolder
from robustvit.core.world import World
from robustvit.evaluation.store import require_shared
from robustvit.models.sharding import is_spread
from robustvit.training.recorder import Recorder, state_paths
from robustvit.training.state_parts import read_parts, write_parts

WEIGHT = torch.arange(12.0).view(6, 2)


@pytest.fixture
def mesh():
    """One process, which holds all of a tensor."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


@pytest.fixture
def recorder(tmp_path):
    return Recorder(RunFolder(tmp_path), {}, quiet=True)


def save(recorder: Recorder, mesh: DeviceMesh, number: int) -> None:
    weight = distribute_tensor(WEIGHT + number, mesh, [Shard(0)])
    moments = {0: {"step": torch.tensor(3.0), "exp_avg": (weight * 2).bfloat16()}}
    state = {"model": {"a.weight": weight}, "optimizer": {"state": moments, "lr": [0.1]}, "best": 0.5}
    rest = write_parts(state, recorder.begin_parts(), World())
    recorder.save_state(number, {"step": number, "task": rest})


def check(recorder: Recorder, number: int, like: object = None) -> None:
    state = recorder.load_state()
    assert state is not None
    assert state["step"] == number
    task = read_parts(state["task"], lambda path: like, World())
    weight, moments = task["model"]["a.weight"], task["optimizer"]["state"][0]
    assert is_spread(weight) == is_spread(like)
    assert torch.equal(weight.full_tensor() if is_spread(weight) else weight, WEIGHT + number)
    assert moments["exp_avg"].dtype == torch.bfloat16
    assert torch.equal(moments["exp_avg"].float() if like is None else weight * 2, 2 * weight)
    assert (moments["step"], task["optimizer"]["lr"], task["best"]) == (3, [0.1], 0.5)
    assert "parts" not in task


def test_parts_are_read_back_whole_or_spread(recorder, mesh):
    save(recorder, mesh, 1)
    (folder,) = state_paths(recorder.folder)
    assert sorted(path.suffix for path in folder.iterdir()) == [".pt", ".safetensors"]
    check(recorder, 1)
    check(recorder, 1, distribute_tensor(torch.zeros_like(WEIGHT), mesh, [Shard(0)]))


def test_the_newest_two_states_are_kept(recorder, mesh):
    for number in (1, 2, 3):
        save(recorder, mesh, number)
    recorder.save_state(4, {"step": 4, "task": {}})
    assert [path.suffix for path in state_paths(recorder.folder)] == [".pt", ".parts"]
    assert len(list(recorder.folder.checkpoints.iterdir())) == 2


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("damage", [flip, Path.unlink], ids=["changed", "missing"])
@pytest.mark.parametrize("pattern", ["shard-00001-*", "state.pt"])
def test_a_damaged_part_is_named_and_the_state_before_is_taken(recorder, mesh, capsys, pattern, damage):
    for number in (1, 2):
        save(recorder, mesh, number)
    newest = state_paths(recorder.folder)[0]
    (part,) = newest.glob(pattern)
    damage(part)
    check(recorder, 1)
    message = capsys.readouterr().err
    assert f"{part}: damaged" in message
    assert f"{newest.name} is now {newest.stem}.damaged, trying the previous one" in message


def test_a_save_that_does_not_end_leaves_the_state_before(recorder, mesh, monkeypatch):
    save(recorder, mesh, 1)

    def killed(*arguments: object) -> None:
        raise KeyboardInterrupt

    for place in ("robustvit.training.recorder.torch.save", "pathlib.Path.rename"):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(place, killed)
            save(recorder, mesh, 2)
        assert len(list(recorder.folder.checkpoints.iterdir())) == 2
        check(recorder, 1)
    recorder.save_state(2, {"step": 2, "task": {}})
    assert len(list(recorder.folder.checkpoints.iterdir())) == 2, "what was begun is gone"
    save(recorder, mesh, 3)
    check(recorder, 3)


def test_a_part_that_can_not_be_written_is_one_sentence(recorder, mesh):
    weight = distribute_tensor(WEIGHT, mesh, [Shard(0)])
    folder = recorder.begin_parts()
    (folder / "shard-00001-model-00001-of-00001.safetensors").mkdir()
    with pytest.raises(UserError, match=r"Is a directory.*states before this one are intact") as caught:
        write_parts({"weight": weight}, folder, World())
    assert len(str(caught.value).splitlines()) == 1


def test_a_folder_that_another_machine_does_not_see_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(World, "gather", lambda self, value: [value, (False, "other-host")])
    with pytest.raises(UserError, match="other-host can't see it, and with shard: true every process writes a part"):
        require_shared(tmp_path, World(), "with shard: true every process writes a part of the state")

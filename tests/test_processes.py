"""Training on several processes: the same bits as on one, and none left waiting."""

import math
import socket
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from conftest import tiny_vit
from robustvit.cli.main import app
from robustvit.core.config import merge
from robustvit.core.errors import UserError
from robustvit.core.journal import read_rows
from robustvit.core.processes import run_processes
from robustvit.core.world import World
from robustvit.data.feed import RowsOf
from robustvit.objectives import Trades
from robustvit.objectives.base import Losses
from robustvit.synthesis import denoise
from robustvit.training import train
from robustvit.training.base_recipe import any_recipe
from robustvit.training.parts import Parts, parts_warning
from robustvit.training.recorder import NullRecorder
from robustvit.training.task import Position
from test_training import TINY

SHORT = {"epochs": 1, "accumulate": 4, "batch_size": 128, "log_every": 3}
RECIPES = {
    "vit": {},
    "mixing": {"mixing": {"mixup": 0.8, "cutmix": 1.0}, "repeats": 1},
    "norms": {"model": {"name": "wideresnet", "settings": {"depth": 10, "width": 1}},
              "objective": {"name": "adversarial", "attack_mode": "train", "attack": {"name": "pgd", "steps": 2}}},
    "awp": {"around_step": "awp", "objective": {"name": "adversarial", "attack": {"name": "pgd", "steps": 2}}},
    "scaling": {"epochs": 2, "events": [{"name": "attention_scaling", "every": 1, "search": {"batches": 2}}]},
    "xcit": {"model": {"name": "xcit_nano_12_p8_224", "num_classes": 10, "patch_size": 2, "settings": {
        "embed_dim": 16, "depth": 1, "num_heads": 2, "cls_attn_layers": 1}}},
    "generated": {"generated": {"data": "digits", "ratio": 0.5}},
    "frozen": {"trainable": ["head.*", "blocks.0.mlp.*"]},
    "fast": {"gradient_sum": "fast"},
    "skips": {"model": {"name": "wideresnet", "settings": {"depth": 10, "width": 1}}},
}  # fmt: skip

DENOISER = {
    "name": "denoiser",
    "task": "denoise",
    "data": "digits",
    "network": {"name": "ddpmpp", "channels": 8, "multipliers": [1, 2], "blocks": 1, "attention": [4]},
    "augmentation": {"probability": 0.3},
}
SHORTER = ["vit", "norms", "awp", "scaling", "fast", "denoiser", "skips"]
"""Those that every run of the tests trains; the slow ones train the others."""


def settings(name: str) -> dict:
    if name == "denoiser":
        return merge(DENOISER, SHORT)
    return merge(merge(TINY, SHORT), {"name": name, **RECIPES[name]})


def train_all(*, world: World, folder: str, names: list[str]) -> None:
    for name in names:
        with pytest.MonkeyPatch.context() as patch:
            if name == "skips":
                patch.setattr(Trades, "loss", sometimes_nan)
            train(settings(name), Path(folder) / name, quiet=True, world=world)


def sometimes_nan(self: Trades, *arguments, computed=Trades.loss) -> Losses:
    """In parts with many images of one class, so that mostly one process has them."""
    losses, y = computed(self, *arguments), arguments[-1]
    return replace(losses, total=losses.total * (math.nan if (y == 3).sum() >= 6 else 1))


def written(folder: Path) -> dict[str, bytes]:
    files = [*folder.glob("checkpoints/*.safetensors"), folder / "metrics.jsonl"]
    return {path.name: path.read_bytes() for path in files}


def assert_equal(run: Path, other: Path) -> None:
    """Every byte of weights and metrics; but for the seconds that an event takes."""
    one, two = written(run), written(other)
    if run.name == "scaling":
        logs = [read_rows(folder / "metrics.jsonl") for folder in (run, other)]
        assert any(row["kind"] == "event" for row in logs[0])
        first, second = ([{**row, "seconds": 0} for row in rows] for rows in logs)
        assert first == second, (run, other)
        del one["metrics.jsonl"], two["metrics.jsonl"]
    differing = [name for name in {*one, *two} if one.get(name) != two.get(name)]
    assert not differing, (run, other)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Every recipe on one process and on two."""
    folder = tmp_path_factory.mktemp("processes")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    train_all(world=World(), folder=str(folder / "1"), names=SHORTER)
    torch.set_num_threads(threads)
    run_processes(2, train_all, {"folder": str(folder / "2"), "names": SHORTER}, folder, connected=True)
    return folder


@pytest.mark.parametrize("name", [name for name in SHORTER if name != "fast"])
def test_two_processes_end_with_the_bytes_of_one(trained, name):
    """Law 1: the number of processes changes neither weights nor metrics. Law 9: recipes share a launch."""
    one = written(trained / "1" / name)
    assert {"last.safetensors", "metrics.jsonl"} <= set(one)
    assert ("best.safetensors" in one) == (name != "denoiser")
    assert_equal(trained / "1" / name, trained / "2" / name)


def test_a_step_that_is_not_finite_in_one_process_is_skipped_by_all(trained):
    """Law 6: all skip it, and buffers stay as they were; compared with one process above, statistics included."""
    skipped = [row.get("skipped_steps", 0) for row in read_rows(trained / "2/skips/metrics.jsonl")]
    steps = read_rows(trained / "2/skips/metrics.jsonl")[-1]["step"]
    assert 0 < max(skipped) < steps


def test_a_fast_sum_is_close(trained):
    """Law 4 in float32, after a whole training; tests/test_world.py has it in float64."""
    from safetensors.torch import load_file

    exact, fast = (load_file(trained / "2" / name / "checkpoints/last.safetensors") for name in ("vit", "fast"))
    assert all(torch.allclose(exact[key], fast[key], atol=1e-4) for key in exact)


def gradients(parts: Parts, double: bool = True) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    model = (model.double() if double else model).train()
    x = torch.rand(parts.rows, 3, 2, 2, dtype=torch.float64 if double else torch.float32)

    def backward(number: int, rows: slice) -> bool:
        loss = model(x[rows]).square().sum() / parts.rows
        loss.backward()
        return bool(torch.isfinite(loss))

    assert parts.add_gradients(model, backward)
    assert model[2].num_batches_tracked == 1
    return [*(p.grad for p in model.parameters()), model[2].running_mean, model[2].running_var]


def test_parts_of_equal_statistics_have_the_gradient_of_the_whole_batch():
    """One image repeated: every part has the statistics of the batch."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 3)).double()
    x = torch.rand(24, 3, 2, 2, dtype=torch.float64)

    def summed(count: int) -> torch.Tensor:
        def backward(number: int, rows: slice) -> bool:
            (model(x[rows]).square().sum() / 24).backward()
            return True

        Parts.of(24, count, World()).add_gradients(model, backward)
        return model[1].weight.grad

    whole = summed(1)
    for count in (2, 3, 4, 6):
        assert torch.allclose(summed(count), whole, rtol=1e-12)


def test_running_statistics_are_the_mean_of_the_parts():
    *_, mean, variance = gradients(Parts.of(8, 1, World()))
    *_, of_parts, variances = gradients(Parts.of(8, 4, World()))
    assert torch.allclose(mean, of_parts, rtol=1e-12), "batch means of equal parts have the mean of the batch"
    assert not torch.allclose(variance, variances)
    assert (variances < 1).all(), "one update, not four"


def test_a_parameter_that_no_part_uses_has_no_gradient():
    model = nn.ModuleDict({"used": nn.Linear(2, 1), "unused": nn.Linear(2, 1)})

    def backward(number: int, rows: slice) -> bool:
        model["used"](torch.ones(1, 2)).sum().backward()
        return number != 1

    assert not Parts.of(4, 2, World()).add_gradients(model, backward), "a part that isn't finite"
    assert model["used"].weight.grad.tolist() == [[2, 2]]
    assert model["unused"].weight.grad is None


def test_rows_belong_to_parts_and_parts_to_processes():
    worlds = [World(rank, 2) for rank in range(2)]
    parts = [Parts.of(10, 4, world) for world in worlds]
    assert [list(one.own) for one in parts] == [[0, 1], [2, 3]]
    assert [one.own_rows.tolist() for one in parts] == [list(range(6)), [6, 7, 8, 9]]
    assert list(parts[1]) == [(2, slice(0, 3)), (3, slice(3, 4))]
    assert Parts.of(12, 1, World(0, 3)).count == 3
    assert Parts.of(12, 4, World(0, 3)).count == 6
    with pytest.raises(UserError, match="a batch of 5 images can't be cut into 4 parts"):
        Parts.of(5, 4, World())


def test_a_process_makes_only_its_rows():
    """Law 2 is in tests/test_feed_rows.py; here, that those rows alone are asked for."""

    class Batches:
        steps_per_epoch = 3

        def __len__(self):
            return 6

        def take(self, step, rows):
            return step, rows.tolist()

    feed = RowsOf(Batches(), torch.tensor([2, 3]))
    assert (len(feed), feed.steps_per_epoch, feed[4]) == (6, 3, (4, [2, 3]))


@pytest.mark.parametrize(
    ("size", "wanted", "message"),
    [
        (1, 3, ""),
        (2, 4, ""),
        (4, 4, ""),
        (2, 1, "2 processes and accumulate=1: other weights than on one process; accumulate=2 and"),
        (2, 6, "2 processes and accumulate=6: other weights than on one process; accumulate=8 and"),
        (3, 4, "accumulate=6 and"),
    ],
)
def test_a_number_of_processes_that_changes_bits_is_reported(size, wanted, message):
    parts = Parts.of(48, wanted, World(0, size))
    assert message in parts_warning(parts, wanted, tiny_vit())
    assert bool(message) == bool(parts_warning(parts, wanted, tiny_vit()))
    assert parts_warning(replace(parts, gradient_sum="fast"), wanted, tiny_vit()) or size == 1


def test_small_parts_of_batch_norms_are_reported():
    norms = nn.BatchNorm2d(3)
    assert "12 images in each of the 4 parts" in parts_warning(Parts.of(48, 4, World()), 4, norms)
    assert parts_warning(Parts.of(64, 4, World()), 4, norms) == ""
    both = parts_warning(Parts.of(48, 4, World(0, 3)), 4, norms)
    assert "other weights than on one process" in both
    assert ". 8 images in each of the 6 parts" in both, "all in one message"


def make_mistakes(*, world: World, folder: str) -> None:
    """First recipes that differ, then an error in one process, which leaves the other waiting."""
    texts = Path(folder) / f"{world.rank}.txt"
    with pytest.raises(UserError) as differing:
        train({**settings("vit"), "seed": world.rank}, Path(folder) / "run", quiet=True, world=world)
    texts.write_text(f"{differing.value}\n")
    world.barrier()  # each has said why it failed, so that the next failure is the last one
    try:
        with world.together():
            if world.is_first:
                raise UserError("this process has a problem")
            world.barrier()
    except UserError as error:
        texts.write_text(f"{texts.read_text()}{error}")
        raise


def test_one_mistake_is_one_message(tmp_path):
    """Law 5: a process with another recipe is refused by host and setting; data and versions are compared the same."""
    with pytest.raises(UserError, match="^this process has a problem$"):
        run_processes(2, make_mistakes, {"folder": str(tmp_path)}, tmp_path, connected=True)
    host = socket.gethostname()
    differing = f"recipe: process 0 ({host}, there) and process 1 ({host}, here) must have the same, but differ in"
    for rank, prefix in enumerate(("", f"process 0 ({host}): ")):  # which other machines print
        lines = (tmp_path / f"{rank}.txt").read_text().splitlines()
        assert lines == [differing, "recipe.seed: 0 there, 1 here", f"{prefix}this process has a problem"]
    assert not (tmp_path / "run").exists(), "a run that can't begin leaves nothing behind"


def no_memory(*arguments, **options):
    raise RuntimeError("DefaultCPUAllocator: can't allocate memory")


@pytest.mark.parametrize(("name", "loss"), [("vit", (Trades, "loss")), ("denoiser", (denoise, "denoising_losses"))])
def test_advice_for_memory_counts_the_parts_of_all_processes(name, loss, monkeypatch):
    """accumulate=2 would leave 8 processes with the parts that they have."""
    monkeypatch.setattr(*loss, no_memory)
    recipe = any_recipe({**settings(name), "accumulate": 1})
    task = recipe.task.build(recipe, NullRecorder(), World(0, 8))
    feed = task.begin_phase(0)
    position = Position(0, "main", len(feed), feed.steps_per_epoch)
    with pytest.raises(UserError, match="at batch_size 128 in 8 parts: start a new run .* with accumulate=16 "):
        task.step(feed[0], position)


def test_a_launcher_is_needed_where_slurm_starts_several_tasks(monkeypatch):
    monkeypatch.setenv("SLURM_NTASKS", "4")
    monkeypatch.setenv("SLURM_PROCID", "1")
    result = CliRunner().invoke(app, ["train", "digits/trades"])
    assert result.exit_code == 2
    assert "SLURM_NTASKS=4 without torchrun: every task would do the whole work" in result.output


@pytest.mark.slow
def test_two_and_four_processes_end_with_the_bytes_of_one(tmp_path):
    """Law 1, every recipe: drop-path, batch norms, mixing, repeats, generated data, AWP, AAS-AT, trained subsets."""
    names = [name for name in RECIPES if name != "fast"]
    torch.set_num_threads(1)
    train_all(world=World(), folder=str(tmp_path / "1"), names=names)
    for count in (2, 4):
        work = {"folder": str(tmp_path / str(count)), "names": names}
        run_processes(count, train_all, work, tmp_path, connected=True)
        for name in names:
            assert_equal(tmp_path / "1" / name, tmp_path / str(count) / name)


def test_a_state_that_the_first_process_does_not_see_is_refused(tmp_path, monkeypatch):
    from robustvit.core.run import RunFolder
    from robustvit.training.train import _refuse_states_elsewhere

    folder = RunFolder(tmp_path)
    folder.checkpoints.mkdir()
    (folder.checkpoints / f"state-000000005-{'0' * 16}.pt").touch()
    elsewhere = {"": False, "state-000000004-": False, "state-000000009-": True}
    for state, is_refused in elsewhere.items():
        others = [(state and f"{state}{'0' * 16}.parts", "other-host")]
        monkeypatch.setattr(World, "gather", lambda self, value, others=others: [value, *others])
        with pytest.raises(UserError, match="other-host holds state-000000009") if is_refused else nullcontext():
            _refuse_states_elsewhere(folder, World(0, 2))


@pytest.mark.slow
def test_resumed_on_other_numbers_of_processes(tmp_path):
    """Laws 1 and 3 without kills: another number of processes after each stop."""
    whole = settings("vit") | {"epochs": 3}
    torch.set_num_threads(1)
    train(whole, tmp_path / "whole", quiet=True)
    for processes, steps in ((2, 4), (1, 3), (4, None)):
        train(whole, tmp_path / "parts", quiet=True, processes=processes, max_steps=steps)
    assert written(tmp_path / "whole") == written(tmp_path / "parts")

"""Generation: an image follows from (seed, index); shards have the same bytes whoever makes them, and after kills."""

import errno
import json
import os
import pickle
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import robustvit as rv
from robustvit.cli.main import app
from robustvit.core.errors import UserError
from robustvit.core.streams import seeded_globals
from robustvit.core.world import World
from robustvit.data import Digits, GeneratedImages
from robustvit.models import load_state, save_model
from robustvit.models.weights import write_safetensors
from robustvit.synthesis import generate as generate_images
from robustvit.synthesis.denoiser import DenoiserSettings, load_denoiser
from robustvit.synthesis.network import DdpmPlusPlus
from robustvit.synthesis.published import load_published
from robustvit.synthesis.sampler import Heun
from robustvit.synthesis.shards import Shards
from test_stories import ENVIRONMENT, wait_for

NETWORK = DdpmPlusPlus(channels=8, multipliers=(1, 2), blocks=1, attention=(4,), dropout=0.1)
SMALL = {"sampler": Heun(steps=3), "batch_size": 8, "shard_size": 20, "seed": 3, "quiet": True}
COUNT = 50
"""Images in two whole shards and half of a third."""


def random_denoiser(augment_labels: int = 9):
    with seeded_globals("denoiser"):
        denoiser = DenoiserSettings(8, 3, NETWORK, augment_labels).build().eval()
        with torch.no_grad():
            for parameter in denoiser.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
    return denoiser


@pytest.fixture(scope="module")
def weights(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("denoiser") / "last.safetensors"
    save_model(random_denoiser(), path)
    return path


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.npy"))}


@pytest.fixture(scope="module")
def whole(weights, tmp_path_factory) -> Path:
    return generate_images(weights, tmp_path_factory.mktemp("whole"), COUNT, **SMALL)


def test_the_shards_are_data_with_classes_in_turn(whole):
    images = GeneratedImages(path=whole).open("train")
    pixels, labels = images.take(torch.arange(COUNT))
    assert pixels.shape == (COUNT, 3, 8, 8)
    assert labels.tolist() == [index % 3 for index in range(COUNT)]
    assert len(torch.unique(pixels, dim=0)) == COUNT
    assert sorted(contents(whole)) == [f"{kind}-0000{n}.npy" for kind in ("images", "labels") for n in range(3)]


@pytest.mark.parametrize(("rank", "size"), [(1, 2), (2, 3)])
def test_bytes_do_not_depend_on_the_process_and_the_order(rank, size, weights, whole, tmp_path):
    generate_images(weights, tmp_path, COUNT, **SMALL, world=World(rank, size))
    assert contents(tmp_path) == contents(whole)


class Killed(BaseException):
    pass


def killed_at(monkeypatch, batch: int) -> None:
    """The sampler dies at so many calls."""
    calls, original = iter(range(1000)), Heun.__call__

    def dying(self, *arguments):
        if next(calls) == batch:
            raise Killed
        return original(self, *arguments)

    monkeypatch.setattr(Heun, "__call__", dying)


@pytest.mark.parametrize("damage", ["none", "torn", "changed"])
def test_killed_at_any_batch_the_same_call_goes_on(damage, weights, whole, tmp_path, monkeypatch):
    for batch in (1, 2, 0, 3):
        with monkeypatch.context() as patch:
            killed_at(patch, batch)
            with pytest.raises(Killed):
                generate_images(weights, tmp_path, COUNT, **SMALL)
        parts = list(tmp_path.glob(".images-*.part"))
        for part in parts:
            data = part.read_bytes()
            if damage == "torn":
                part.write_bytes(data[:-5])
            elif damage == "changed" and data:
                part.write_bytes(data[:-30] + bytes([data[-30] ^ 1]) + data[-29:])
    generate_images(weights, tmp_path, COUNT, **SMALL)
    assert contents(tmp_path) == contents(whole)
    assert not list(tmp_path.glob(".images-*.part"))


def test_every_batch_is_whole_as_a_smaller_one_would_round_differently(weights, tmp_path, monkeypatch):
    sizes, original = [], Heun.__call__

    def recorded(self, denoise, shape, labels, random):
        sizes.append(len(labels))
        return original(self, denoise, shape, labels, random)

    monkeypatch.setattr(Heun, "__call__", recorded)
    generate_images(weights, tmp_path, COUNT, **SMALL)
    assert sizes == [8] * 8  # three for each whole shard of 20, two for the last 10


def test_a_growing_shard_loses_what_was_torn_alone(tmp_path, monkeypatch):
    shards = Shards(tmp_path, total=5, size=5, batch_size=1, side=2)
    images = np.arange(60, dtype=np.uint8).reshape(5, 1, 2, 2, 3)
    synced, original = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(descriptor) or original(descriptor))
    with shards.growing(0) as growing:
        growing.append(images[0])
        growing.append(images[1])
    assert len(synced) == 2  # each is on the disk, not only in memory
    (part,) = tmp_path.glob(".images-*.part")
    part.write_bytes(part.read_bytes()[:-3])
    with shards.growing(0) as growing:
        assert list(growing.missing) == [1, 2, 3, 4]
        growing.append(images[1])
        growing.append(images[2])
    with shards.growing(0) as growing:
        assert list(growing.missing) == [3, 4]
        assert np.array_equal(np.stack(growing.batches), images[:3])


def test_what_is_made_is_not_made_again(weights, tmp_path, monkeypatch):
    generate_images(weights, tmp_path, 20, **SMALL)
    killed_at(monkeypatch, 0)
    generate_images(weights, tmp_path, 20, **SMALL)
    with pytest.raises(Killed):
        generate_images(weights, tmp_path, 21, **SMALL)


def test_more_images_keep_those_that_are_there(weights, whole, tmp_path):
    generate_images(weights, tmp_path, 25, **SMALL)
    generate_images(weights, tmp_path, COUNT, **SMALL)
    assert contents(tmp_path) == contents(whole)
    with pytest.raises(UserError, match="is to hold 50 images; ask for at least so many"):
        generate_images(weights, tmp_path, 30, **SMALL)


def test_other_batch_sizes_differ_by_one_gray_level_at_most(weights, whole, tmp_path):
    generate_images(weights, tmp_path, COUNT, **{**SMALL, "batch_size": 5, "shard_size": 50})
    ours, theirs = (GeneratedImages(path=path).open("train").take(torch.arange(COUNT))[0] for path in (tmp_path, whole))
    assert (ours.int() - theirs.int()).abs().max() <= 1


def test_a_shard_that_another_process_makes_is_left_to_it(weights, whole, tmp_path, monkeypatch):
    monkeypatch.setattr("robustvit.synthesis.shards.try_lock", lambda descriptor: False)
    generate_images(weights, tmp_path, COUNT, **SMALL)
    assert not contents(tmp_path)
    monkeypatch.undo()
    generate_images(weights, tmp_path, COUNT, **SMALL)
    assert contents(tmp_path) == contents(whole)


def test_chosen_classes_and_seeds(weights, whole, tmp_path):
    generate_images(weights, tmp_path / "classes", 20, **{**SMALL, "classes": (2, 0)})
    labels = GeneratedImages(path=tmp_path / "classes").open("train").take(torch.arange(20))[1]
    assert labels.tolist() == [2, 0] * 10
    generate_images(weights, tmp_path / "seed", 20, **{**SMALL, "seed": 4})
    assert contents(tmp_path / "seed")["images-00000.npy"] != contents(whole)["images-00000.npy"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 4}, "made otherwise .seed: 3 there, 4 here.; choose another folder"),
        ({"sampler": Heun(steps=4)}, "made otherwise .sampler.steps: 3 there, 4 here.; choose another folder"),
        ({"classes": (0, 3)}, "classes: the denoiser has the classes 0 to 2, not 3"),
        ({"classes": ()}, "classes: the denoiser has the classes 0 to 2, not none"),
        ({"classes": (1, 1)}, "classes: one is named twice"),
        ({"processes": 0}, "processes: a whole number, at least 1"),
        ({"batch_size": 0}, "batch_size: a whole number, at least 1"),
        ({"shard_size": 1, "images": 30_000}, "shard_size: 30,000 images in files of 1 are too many"),
    ],
)
def test_what_does_not_fit_is_refused(change, message, weights, whole):
    before = contents(whole)
    with pytest.raises(UserError, match=message):
        generate_images(weights, whole, **{"images": COUNT, **SMALL, **change})
    assert contents(whole) == before


def test_shards_of_another_run_are_refused(whole, tmp_path):
    save_model(random_denoiser(augment_labels=0), tmp_path / "other.safetensors")
    with pytest.raises(UserError, match="holds images that were made otherwise .weights: "):
        generate_images(tmp_path / "other.safetensors", whole, COUNT, **SMALL)


def test_folders_that_are_not_ours_or_damaged_are_refused(weights, tmp_path):
    np.save(tmp_path / "images-0.npy", np.zeros((2, 8, 8, 3), np.uint8))
    with pytest.raises(UserError, match="holds images that robustvit generate did not make"):
        generate_images(weights, tmp_path, 20, **SMALL)
    folder = generate_images(weights, tmp_path / "mine", 20, **SMALL)
    path = folder / "images-00000.npy"
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(UserError, match="images-00000.npy: not a whole NumPy array .* remove it to have it made anew"):
        generate_images(weights, folder, 20, **SMALL)
    np.save(path, np.zeros((20, 4, 4, 3), np.uint8))
    with pytest.raises(UserError, match="images-00000.npy: other images than this folder's; remove it"):
        generate_images(weights, folder, 20, **SMALL)
    description = folder / "generation.json"
    description.write_text(json.dumps({**json.loads(description.read_text()), "images": 3}))
    with pytest.raises(UserError, match="generation.json: its content was changed"):
        generate_images(weights, folder, 20, **SMALL)


@pytest.mark.parametrize("call", [3, 8], ids=["a batch", "a shard"])
def test_a_full_disk_is_one_sentence_and_loses_nothing(call, weights, whole, tmp_path, monkeypatch):
    calls, original = iter(range(1000)), os.fsync

    def full(descriptor):
        if next(calls) == call:  # after the description and some batches
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        original(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match=r"could not be written \(No space left on device\)"):
        generate_images(weights, tmp_path, COUNT, **SMALL)
    monkeypatch.undo()
    generate_images(weights, tmp_path, COUNT, **SMALL)
    assert contents(tmp_path) == contents(whole)


def test_a_denoiser_that_makes_no_numbers_is_refused(tmp_path):
    denoiser = random_denoiser()
    with torch.no_grad():
        denoiser.model.dec["8x8_aux_conv"].bias.fill_(1e38)
    save_model(denoiser, tmp_path / "w.safetensors")
    with pytest.raises(UserError, match="makes numbers that are not finite"):
        generate_images(tmp_path / "w.safetensors", tmp_path / "out", 8, **SMALL)


def test_the_command_line_generates_and_refuses(weights, whole, tmp_path):
    def run(*more: str):
        return CliRunner().invoke(app, ["generate", str(weights), "--images", str(COUNT), "--seed", "3", *more])

    small = ["--steps", "3", "--batch-size", "8", "--shard-size", "20", "--processes", "1"]
    done = run("--out", str(tmp_path / "out"), *small)
    assert done.exit_code == 0, done.output
    assert contents(tmp_path / "out") == contents(whole)
    for more, message in ((["--classes", "0,7"], "classes 0 to 2, not 7"), (["--classes", "a"], "numbers with commas"),
                          (["-o", "churm=1"], "did you mean 'churn'?")):  # fmt: skip
        failed = run("--out", str(tmp_path / "new"), *small, *more)
        assert failed.exit_code == 2
        assert message in failed.output
    failed = CliRunner().invoke(app, ["generate", "nowhere", "--images", "1", "--out", str(tmp_path / "new")])
    assert failed.exit_code == 2
    assert "nowhere: expected a run folder of a denoiser" in failed.output


@pytest.mark.slow
def test_processes_share_the_shards(weights, whole, tmp_path):
    for count in (2, 3):
        generate_images(weights, tmp_path / str(count), COUNT, **SMALL, processes=count)
        assert contents(tmp_path / str(count)) == contents(whole)


@pytest.mark.slow
def test_a_killed_command_goes_on(weights, whole, tmp_path):
    small = ["--seed", "3", "--steps", "3", "--batch-size", "8", "--shard-size", "20", "--processes", "2"]
    command = [
        sys.executable,
        "-m",
        "robustvit",
        "generate",
        str(weights),
        "--images",
        str(COUNT),
        "--out",
        "out",
        *small,
    ]

    def more_than(number: int) -> bool:
        return len(list(tmp_path.glob("out/*.npy"))) > number

    for number in range(3):
        process = subprocess.Popen(command, cwd=tmp_path, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)
        wait_for(partial(more_than, number), process)
        process.kill()
        process.wait()
    subprocess.run(command, cwd=tmp_path, env=ENVIRONMENT, check=True, capture_output=True)
    assert contents(tmp_path / "out") == contents(whole)


@pytest.mark.slow
def test_samples_of_the_digits_show_the_class_of_their_label(tmp_path):
    """As a classifier of real digits judges."""
    from sklearn.linear_model import LogisticRegression

    run = rv.train("digits/edm", run=tmp_path / "run", quiet=True).path
    folder = generate_images(run, tmp_path / "out", 500, quiet=True)
    sets = (Digits().open("train"), GeneratedImages(path=folder).open("train"))
    (x, y), (samples, labels) = (images.take(torch.arange(len(images))) for images in sets)
    judge = LogisticRegression(max_iter=2000).fit(x[:, 0].flatten(1).numpy() / 255, y)
    agreement = judge.score(samples[:, 0].flatten(1).numpy() / 255, labels)
    print(f"class agreement {agreement:.1%}")
    assert agreement >= 0.85
    assert len(torch.unique(samples, dim=0)) == 500


# NVlabs' layout: every module is a call of one function with the source of its class and its state

SOURCE = "import pathlib\npathlib.Path('{mark}').touch()\nclass EDMPrecond: pass\nclass SongUNet: pass\n"


class Persistent:
    """Pickled as NVlabs' classes are; `mark` is what its source would create if it ran."""

    def __init__(self, name: str, state: dict, mark: Path) -> None:
        self.name, self.state, self.mark = name, state, mark

    def __reduce__(self):
        source = SOURCE.format(mark=self.mark)
        meta = {"type": "class", "version": 6, "module_src": source, "class_name": self.name, "state": self.state}
        return sys.modules["torch_utils.persistence"]._reconstruct_persistent_obj, (meta,)


def as_published(denoiser, mark: Path, name="EDMPrecond", **settings) -> dict:
    """A denoiser of ours in their layout."""

    def kept(class_name: str, module: nn.Module, **facts) -> Persistent:
        modules = {}
        for child, inner in module.named_children():
            if isinstance(inner, nn.ModuleDict):
                modules[child] = holder = nn.ModuleDict()
                holder._modules.update({key: kept(type(part).__name__, part) for key, part in inner.items()})
            else:
                modules[child] = kept("SongUNet" if child == "model" else type(inner).__name__, inner, **facts)
        buffers = {}
        if getattr(module, "resample", ""):
            modules["conv0"].state["_buffers"]["resample_filter"] = torch.full((1, 1, 2, 2), 0.25)
        state = {"training": False, "_parameters": dict(module._parameters), "_buffers": buffers, "_modules": modules}
        return Persistent(class_name, {**state, **facts}, mark)

    network = denoiser.settings.network
    made = {"model_channels": network.channels, "channel_mult": list(network.multipliers), "augment_dim": 9,
            "num_blocks": network.blocks, "attn_resolutions": list(network.attention), "dropout": network.dropout,
            "resample_filter": [1, 1], "embedding_type": "positional", **settings.pop("inner", {})}  # fmt: skip
    facts = {"img_resolution": 8, "img_channels": 3, "label_dim": 3, "sigma_data": np.float64(0.5), **settings}
    return {"ema": kept(name, denoiser, **facts, _init_kwargs=made)}


@pytest.fixture
def write(tmp_path, monkeypatch):
    for name in ("torch_utils", "torch_utils.persistence"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))

    def reconstruct(meta):
        exec(meta["module_src"])

    reconstruct.__module__, reconstruct.__qualname__ = "torch_utils.persistence", "_reconstruct_persistent_obj"
    sys.modules["torch_utils.persistence"]._reconstruct_persistent_obj = reconstruct

    def write(content) -> Path:
        (tmp_path / "published.pkl").write_bytes(pickle.dumps(content))
        return tmp_path / "published.pkl"

    return write


def test_a_published_checkpoint_is_read_without_running_its_code(write, tmp_path, capsys):
    denoiser, mark = random_denoiser(), tmp_path / "it-ran"
    path = write(as_published(denoiser, mark))
    loaded = load_published(path)
    assert not mark.exists()
    assert "CC BY-NC-SA 4.0" in capsys.readouterr().err
    assert loaded.settings == denoiser.settings
    assert all(torch.equal(denoiser.state_dict()[name], tensor) for name, tensor in loaded.state_dict().items())
    folder = generate_images(path, tmp_path / "out", 8, **SMALL)
    assert json.loads((folder / "generation.json").read_text())["license"] == "CC BY-NC-SA 4.0"
    pickle.loads(path.read_bytes())
    assert mark.exists(), "what the file would do"


class Bomb:
    def __init__(self, function, *arguments) -> None:
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("where", ["top", "in the network", "in a tensor"])
def test_a_pickle_that_carries_other_code_is_refused(where, write, tmp_path):
    mark = tmp_path / "it-ran"
    bomb = Bomb(os.mkdir, str(mark))
    content = as_published(random_denoiser(), mark)
    if where == "top":
        content["loss_fn"] = bomb
    elif where == "in the network":
        content["ema"].state["hook"] = bomb
    else:
        content["ema"].state["_parameters"]["bomb"] = Bomb(torch.storage._load_from_bytes, pickle.dumps(bomb))
    with pytest.raises(UserError, match="not a checkpoint of EDM"):
        load_published(write(content))
    assert not mark.exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "VPPrecond"}, "holds the class 'VPPrecond'; only EDM's own"),
        ({"label_dim": 0}, "has no classes, which generated images need"),
        ({"img_channels": 1}, "makes images of 1 channels; three are needed"),
        ({"inner": {"encoder_type": "residual"}}, "encoder_type is 'residual', where DDPM.. has 'standard'"),
        ({"inner": {"model_channels": 16}}, "its weights don't fit the network that it names"),
        ({"inner": {"model_channels": "many"}}, "published.pkl.network.channels: "),
        ({"img_resolution": 9}, "multipliers: 2 levels halve it 1 times, which images of 9 pixels do not allow"),
    ],
)
def test_other_networks_are_refused(change, message, write, tmp_path):
    with pytest.raises(UserError, match=message):
        load_published(write(as_published(random_denoiser(), tmp_path / "it-ran", **change)))


@pytest.mark.parametrize("content", [{}, [], {"ema": 3}, {"ema": {"state": 1}}, "text"])
def test_what_is_no_checkpoint_is_one_sentence(content, write):
    with pytest.raises(UserError, match="published.pkl: not a whole checkpoint of EDM"):
        load_published(write(content))
    path = write(content)
    path.write_bytes(b"neither")
    with pytest.raises(UserError, match="published.pkl: not a checkpoint of EDM"):
        load_published(path)


def test_weights_that_lie_about_their_network_are_refused(weights, tmp_path):
    state = load_denoiser(weights)
    state.settings = DenoiserSettings(8, 4, NETWORK, 9)
    save_model(state, tmp_path / "w.safetensors")
    with pytest.raises(UserError, match="'model.map_label.weight' is 8 x 3 in the file, 8 x 4 in the model"):
        load_denoiser(tmp_path / "w.safetensors")


def test_killed_between_labels_and_images_of_a_longer_shard_the_same_call_goes_on(weights, whole, tmp_path):
    generate_images(weights, tmp_path, COUNT - 5, **SMALL)
    (tmp_path / "labels-00002.npy").write_bytes((whole / "labels-00002.npy").read_bytes())
    generate_images(weights, tmp_path, COUNT, **SMALL)
    assert contents(tmp_path) == contents(whole)
    np.save(tmp_path / "labels-00002.npy", np.zeros(4, np.int64))
    with pytest.raises(UserError, match="images-00002.npy: other images than this folder's; remove it"):
        generate_images(weights, tmp_path, COUNT, **SMALL)


def test_a_short_last_shard_counts_as_many_images_as_it_has(tmp_path):
    def shards(total: int) -> Shards:
        return Shards(tmp_path, total=total, size=5, batch_size=2, side=2)

    images, labels = np.zeros((5, 2, 2, 3), np.uint8), np.zeros(5, np.int64)
    shards(7).write(0, images, labels)
    shards(7).write(1, images[:2], labels[:2])
    assert [shards(total).count_made() for total in (6, 7, 10, 20)] == [6, 7, 7, 7]
    with shards(10).growing(1) as growing:
        assert growing is not None
        for made in (7, 9, 10):
            growing.append(images[:2])
            assert shards(10).count_made() == made


@pytest.mark.parametrize(
    ("network", "message"),
    [({"channels": 128}, "its weights don't fit the network that it names: .* in the model"),
     ({"blocks": 65}, "blocks: .* less than or equal to 64"),
     ({"channels": 4096, "multipliers": [10**9, 10**9]}, "names a network that can.t be built"),
     ({"channels": 4096, "multipliers": [2000, 2000]}, "its weights don.t fit")],
)  # fmt: skip
def test_weights_that_name_a_larger_network_take_no_memory_for_it(network, message, weights, tmp_path, monkeypatch):
    facts = load_state(weights)[1]
    facts["denoiser"]["network"] |= network
    path = tmp_path / "large.safetensors"
    write_safetensors(random_denoiser(), path, facts)
    devices = set()
    monkeypatch.setattr(nn.init, "xavier_uniform_", lambda weight: devices.add(weight.device.type))
    with pytest.raises(UserError, match=message):
        load_denoiser(path)
    assert devices <= {"meta"}

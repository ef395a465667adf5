"""Models that others made: their checkpoints, their files, their names."""

import argparse
import importlib
import os
import pickle
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import robustvit as rv
from robustvit.cli.main import app
from robustvit.core.errors import UserError
from robustvit.core.result_files import read_result
from robustvit.data import Digits, as_pixels
from robustvit.models import create_model, fingerprint, load_model
from robustvit.models.foreign import fit_state

RAW = {"mean": (0,), "std": (1,)}


def resnet(**changes):
    return rv.ModelSettings(**{"name": "test_resnet", "num_classes": 5, **RAW, **changes})


def prefixed(state, prefix):
    return {f"{prefix}{key}": value for key, value in state.items()}


@pytest.fixture(scope="module")
def model():
    return create_model("test_resnet", num_classes=5, **RAW).eval()  # timm's smallest: 0.4 M parameters


@pytest.mark.parametrize(
    "wrap",
    [
        lambda s: s,
        lambda s: {"state_dict": s, "epoch": 3, "optimizer": {"state": {}, "param_groups": [1]}},
        lambda s: {"model": prefixed(s, "module.")},
        lambda s: {"state_dict_ema": prefixed(s, "module.model.")},
        lambda s: {"net": prefixed(s, "_orig_mod.")},
        lambda s: {"last": {"state_dict": prefixed(s, "model.module.")}},
        lambda s: prefixed(s, "basic_net.backbone."),
        lambda s: {"state_dict": s, "args": argparse.Namespace(lr=0.1), "best": np.float64(0.5)},
        lambda s: {key: value for key, value in s.items() if "num_batches_tracked" not in key},
    ],
)
def test_a_state_dict_is_found_under_its_key_and_prefix(tmp_path, model, wrap):
    torch.save(wrap(model.backbone.state_dict()), tmp_path / "x.pt")
    assert fingerprint(load_model(tmp_path / "x.pt", resnet())) == fingerprint(model)


def test_which_of_several_sets_of_weights_is_asked_for(tmp_path, model):
    state = model.backbone.state_dict()
    other = {key: value * 2 if value.is_floating_point() else value for key, value in state.items()}
    torch.save({"state_dict": other, "state_dict_ema": state, "deep": {"er": state}}, tmp_path / "x.pth")
    with pytest.raises(UserError, match=r"several sets of weights \(state_dict, state_dict_ema\)"):
        load_model(tmp_path / "x.pth", resnet())
    for key in ("state_dict_ema", "deep.er"):
        assert fingerprint(load_model(tmp_path / "x.pth", resnet(), weights_key=key)) == fingerprint(model)
    assert fingerprint(load_model(tmp_path / "x.pth", resnet(), weights_key="state_dict")) != fingerprint(model)
    with pytest.raises(UserError, match="no weights under 'ema'; there are: state_dict, state_dict_ema, deep"):
        load_model(tmp_path / "x.pth", resnet(), weights_key="ema")
    torch.save({"epoch": 3}, tmp_path / "none.pth")
    with pytest.raises(UserError, match="no state dict found.*there are: epoch"):
        load_model(tmp_path / "none.pth", resnet())


def test_the_three_worst_misfits_are_reported(tmp_path, model):
    torch.save(create_model("resnet18", num_classes=5).backbone.state_dict(), tmp_path / "x.pt")
    with pytest.raises(UserError) as caught:
        load_model(tmp_path / "x.pt", resnet(name="resnet34"))
    message = str(caught.value)
    assert "don't fit model 'resnet34'" in message
    assert message.count("is not in the file") == 3
    assert "'layer4.2.conv1.weight' (512 x 512 x 3 x 3)" in message, "the largest first"
    assert re.search(r"and \d+ more", message)
    assert "\n" not in message
    state = model.backbone.state_dict()
    torch.save(state, tmp_path / "x.pt")
    with pytest.raises(UserError, match=r"'fc.weight' is 5 x 96 in the file, 7 x 96 in the model.*of 5 classes"):
        load_model(tmp_path / "x.pt", resnet(num_classes=7))
    torch.save({**state, "extra.weight": torch.zeros(2, 3)}, tmp_path / "x.pt")
    with pytest.raises(UserError, match=r"'extra.weight' \(2 x 3\) has no place in the model$"):
        load_model(tmp_path / "x.pt", resnet())


def test_mean_and_std_are_given_or_stored_never_guessed(tmp_path, model):
    state = model.backbone.state_dict()
    torch.save(state, tmp_path / "bare.pt")
    nothing = resnet(mean=None, std=None)
    with pytest.raises(UserError, match="doesn't say how its images were normalized.*0.5,0.5,0.5 and 0.5,0.5,0.5"):
        load_model(tmp_path / "bare.pt", nothing)
    with pytest.raises(UserError, match="go together"):
        load_model(tmp_path / "bare.pt", resnet(mean=(0.5,), std=None))
    cifar = {"mean": (0.4914, 0.4822, 0.4465), "std": (0.2471, 0.2435, 0.2616)}
    stored = {
        **prefixed(state, "module.model."),
        "module.normalize.mean": torch.tensor(cifar["mean"]).view(1, 3, 1, 1),
        "module.normalize.std": torch.tensor(cifar["std"]).view(1, 3, 1, 1),
    }
    torch.save({"state_dict": stored}, tmp_path / "layer.pt")
    x = torch.rand(2, 3, 32, 32)
    expected = create_model("test_resnet", num_classes=5, **cifar).eval()
    expected.backbone.load_state_dict(state)
    for settings in (nothing, resnet(**cifar), resnet(mean=(0.491, 0.482, 0.447), std=(0.247, 0.244, 0.262))):
        loaded = load_model(tmp_path / "layer.pt", settings)
        assert torch.allclose(loaded(x), expected(x), atol=2e-3)
        assert len(loaded.settings.mean) == 3
    with pytest.raises(UserError, match="stored with the mean and std 0.4914,0.4822,0.4465 and .*, not 0 and 1"):
        load_model(tmp_path / "layer.pt", resnet())


def test_tables_that_a_model_computes_itself_need_not_fit():
    swin = create_model("swin_tiny_patch4_window7_224", num_classes=3, depths=(1, 1, 1, 1)).backbone
    state = swin.state_dict()
    older = {**state, "layers.0.blocks.0.attn.relative_position_index": torch.zeros(49, 49)}
    assert set(fit_state(older, swin)[0]) == set(state)


class TheirBlock(nn.Module):
    """As Gowal et al. publish it, in short."""

    def __init__(self, width_in, width_out, stride):
        super().__init__()
        self.batchnorm_0, self.batchnorm_1 = nn.BatchNorm2d(width_in), nn.BatchNorm2d(width_out)
        self.conv_0 = nn.Conv2d(width_in, width_out, 3, stride=stride, bias=False)
        self.conv_1 = nn.Conv2d(width_out, width_out, 3, padding=1, bias=False)
        self.pad = (1, 1, 1, 1) if stride == 1 else (0, 1, 0, 1)
        if width_in != width_out:
            self.shortcut = nn.Conv2d(width_in, width_out, 1, stride=stride, bias=False)

    def forward(self, x):
        active = nn.functional.silu(self.batchnorm_0(x))
        out = nn.functional.silu(self.batchnorm_1(self.conv_0(nn.functional.pad(active, self.pad))))
        return self.conv_1(out) + (self.shortcut(active) if hasattr(self, "shortcut") else x)


class TheirWideResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.init_conv = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        widths = [16, 32, 64, 128]
        self.layer = nn.Sequential(*(nn.Module() for _ in range(3)))
        for i, group in enumerate(self.layer):
            first = TheirBlock(widths[i], widths[i + 1], 1 if i == 0 else 2)
            group.block = nn.Sequential(first, TheirBlock(widths[i + 1], widths[i + 1], 1))
        self.batchnorm, self.logits = nn.BatchNorm2d(128), nn.Linear(128, 5)

    def forward(self, x):
        x = self.init_conv(x)
        for group in self.layer:
            x = group.block(x)
        return self.logits(nn.functional.silu(self.batchnorm(x)).mean((2, 3)))


def test_public_wide_resnets_of_gowal_et_al(tmp_path):
    theirs, x = TheirWideResNet().eval(), torch.rand(2, 3, 32, 32)
    torch.save({"model_state_dict": prefixed(theirs.state_dict(), "module.")}, tmp_path / "x.pt")
    shape = {"depth": 16, "width": 2, "act_layer": "silu"}
    with pytest.raises(UserError, match="same_padding: true"):
        load_model(tmp_path / "x.pt", resnet(name="wideresnet", settings=shape))
    model = load_model(tmp_path / "x.pt", resnet(name="wideresnet", settings={**shape, "same_padding": True}))
    torch.testing.assert_close(model(x), theirs(x))


def test_public_wide_resnets_of_hendrycks_et_al(tmp_path):
    shape = {"depth": 16, "width": 1}
    model = create_model("wideresnet", num_classes=5, **RAW, **shape).eval()
    state = {}
    for key, value in model.backbone.state_dict().items():
        key = re.sub(r"^groups\.(\d)\.(\d)", lambda at: f"block{int(at[1]) + 1}.layer.{at[2]}", key)
        key = key.replace("shortcut", "convShortcut").replace("norm1", "bn1").replace("norm2", "bn2")
        state[re.sub(r"^norm\.", "bn1.", key)] = value
    state |= {f"sub_{key}": value for key, value in state.items() if key.startswith("block1.")}
    torch.save(prefixed(state, "module."), tmp_path / "x.pt")
    loaded = load_model(tmp_path / "x.pt", resnet(name="wideresnet", settings=shape))
    assert fingerprint(loaded) == fingerprint(model)


def test_halved_checkpoints_load_with_their_counters(tmp_path, model):
    torch.save({name: value.half() for name, value in model.backbone.state_dict().items()}, tmp_path / "half.pt")
    loaded = load_model(tmp_path / "half.pt", resnet())
    for name, value in model.backbone.state_dict().items():
        torch.testing.assert_close(loaded.backbone.state_dict()[name], value, rtol=1e-2, atol=1e-3)


@pytest.mark.filterwarnings("ignore")
def test_a_scripted_model_is_reported(tmp_path, model):
    torch.jit.trace(model.eval(), torch.rand(1, 3, 32, 32)).save(tmp_path / "scripted.pt")
    with pytest.raises(UserError, match=r"scripted.pt: a scripted model.*save the state dict"):
        load_model(tmp_path / "scripted.pt", resnet())


def test_a_checkpoint_with_live_objects_next_to_the_weights_is_refused(tmp_path, model):
    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "sprung"),)

    torch.save({"state_dict": model.backbone.state_dict(), "args": Trap()}, tmp_path / "x.pt")
    with pytest.raises(UserError, match="could run code"):
        load_model(tmp_path / "x.pt", resnet())
    (tmp_path / "y.pt").write_bytes(pickle.dumps({"state_dict": Trap()}))
    with pytest.raises(UserError, match="could run code|not a whole"):
        load_model(tmp_path / "y.pt", resnet())
    assert not (tmp_path / "sprung").exists()


def test_pretrained_names_without_a_network_end_in_one_clear_line(monkeypatch, tmp_path):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    for name, pretrained in (("resnet18", True), ("hf_hub:timm/resnet18.a1_in1k", True), ("hf-hub:a/b", False)):
        with pytest.raises(UserError, match="can't be had.*with a network they are downloaded once") as caught:
            create_model(name, pretrained=pretrained)
        assert "\n" not in str(caught.value)
        assert constants.HF_HUB_OFFLINE is False


def test_a_model_saved_for_the_hub_is_read_by_its_name(tmp_path):
    from timm.models import save_for_hf

    theirs = create_model("test_resnet").backbone.eval()
    save_for_hf(theirs, tmp_path / "saved", safe_serialization=True)
    model = create_model(f"local-dir:{tmp_path / 'saved'}", pretrained=True, mean=(0,), std=(1,)).eval()
    x = torch.rand(2, 3, 32, 32)
    assert torch.equal(model(x), theirs(x))


MYMODEL = """
import torch
from torch import nn
from blocks import Residual  # a file of the user's own in the same folder

MEAN, STD = (0.3, 0.3, 0.3), (0.38, 0.38, 0.38)


class SmallResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.blocks = nn.Sequential(Residual(16), Residual(16))
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


def untrained():
    torch.manual_seed(0)
    return SmallResNet()


def build():
    model = untrained()
    model.load_state_dict(torch.load("weights.pt", weights_only=True))
    return model
"""
BLOCKS = """
from torch import nn


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(
            nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1),
            nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1),
        )

    def forward(self, x):
        return x + self.body(x)
"""


@pytest.fixture
def users_folder(tmp_path, monkeypatch):
    """Somebody's ResNet in files of their own, trained for a moment on normalized digits."""
    (tmp_path / "mymodel.py").write_text(MYMODEL)
    (tmp_path / "blocks.py").write_text(BLOCKS)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("mymodel", "blocks"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    x, y = Digits().open("train").take(torch.arange(1437))
    x = (as_pixels(x) - 0.3) / 0.38
    model = importlib.import_module("mymodel").untrained().train()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for step in range(60):
        rows = (torch.arange(64) * 17 + step * 3) % 1437
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    return tmp_path


def robustvit(*arguments, cwd):
    """The real command in a process of its own, as a user runs it."""
    code = [sys.executable, "-c", "from robustvit.cli.main import main; main()", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "140"}
    done = subprocess.run(code, cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return read_result((cwd / done.stdout.split()[-1]).parent), done.stdout, done.stderr


COMMAND = ("--data", "digits", "--suite", "pgd-5x2", "--eps", "8/255", "--images", "100")


def test_somebodys_own_resnet_is_evaluated_from_the_folder_it_lies_in(users_folder):
    right = ("--mean", "0.3,0.3,0.3", "--std", "0.38,0.38,0.38")
    result, out, err = robustvit("evaluate", "mymodel:build", *COMMAND, *right, cwd=users_folder)
    assert result.clean_accuracy > 0.8
    assert result.robust_accuracy < result.clean_accuracy
    assert result.provenance.data == "digits/test"
    assert not result.warnings, "a model far above chance"
    assert "mymodel:build" in out
    assert "chance" not in err


def test_a_model_at_chance_is_reported_and_may_lie_in_another_folder(users_folder):
    (users_folder / "below").mkdir()
    result, _, err = robustvit("evaluate", "../mymodel.py:untrained", *COMMAND, cwd=users_folder / "below")
    assert "pixels in [0, 1] as they are; --mean and --std" in err
    assert err.count("no better than chance") == 1, "reported before the attack"
    assert "wrong normalization" in result.warnings[0].advice


def test_a_robustbench_style_checkpoint_on_the_command_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    vit = create_model("vit_tiny_patch16_224", num_classes=10, img_size=8, patch_size=2, depth=1, **RAW)
    torch.save({"state_dict": prefixed(vit.backbone.state_dict(), "module.model."), "epoch": 7}, "x.pt")
    done = CliRunner().invoke(app, [
        "evaluate", "x.pt", "--model", "vit_tiny_patch16_224", "--num-classes", "10", "--img-size", "8",
        "-o", "model.patch_size=2", "-o", "model.settings.depth=1", "--mean", "0", "--std", "1",
        "--data", "digits", "--suite", "fgsm", "--eps", "8/255", "--images", "16",
    ])  # fmt: skip
    assert done.exit_code == 0, done.output
    made = read_result(next(tmp_path.glob("runs/x/eval/*/result.json")).parent).provenance
    assert made.model["settings"] == {"depth": 1}
    assert made.model["mean"] == [0]
    assert made.checkpoint["name"] == "x"


def test_a_bare_callable_is_evaluated_in_a_run_folder(trained, tmp_path):
    class Ensemble:
        """No nn.Module, no weights that anyone could see."""

        def __call__(self, x):
            return (trained(x) + trained(x.flip(0)).flip(0)) / 2

    result = rv.evaluate(
        Ensemble(), "digits", suite="pgd-3", threat=rv.LpBall("inf", 0.1), images=64, run=tmp_path, quiet=True
    )
    assert result.clean_accuracy > 0.9
    assert result.robust_accuracy < result.clean_accuracy
    assert result.provenance.model["name"].endswith("Ensemble")
    assert (tmp_path / "eval").is_dir()

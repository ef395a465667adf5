"""Models take pixels, and their weights travel safely."""

import json
import os
import pickle
import subprocess
import sys
from threading import Barrier, Event, Thread

import pytest
import timm
import torch
from packaging.version import Version
from safetensors.torch import save_file
from torch import nn
from typer.testing import CliRunner

from conftest import tiny_vit
from robustvit.attacks import PGD, Search
from robustvit.cli.main import app
from robustvit.core.errors import UserError
from robustvit.core.streams import sample_streams
from robustvit.models import (
    ModelSettings,
    create_model,
    eval_mode,
    fingerprint,
    in_mode,
    load_model,
    model_cost,
    normalized,
    save_model,
)
from robustvit.models.cost import counted_operations
from robustvit.models.export import export_model
from robustvit.models.papers import paper_models
from robustvit.threats import LpBall

SMALL = [
    ("vit_tiny_patch16_224", {"img_size": 32, "patch_size": 4, "depth": 1}),
    ("xcit_nano_12_p16_224", {"depth": 1}),
    ("swin_tiny_patch4_window7_224", {"img_size": 32, "patch_size": 2, "window_size": 4, "depths": (1, 1, 1, 1)}),
    ("resnet18", {"img_size": 32}),
    ("convnext_atto", {"img_size": 32}),
]


@pytest.mark.parametrize(("name", "settings"), SMALL, ids=[name for name, _ in SMALL])
def test_any_timm_classifier_saves_and_loads_to_the_same_logits(name, settings, tmp_path):
    model = create_model(name, num_classes=7, mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4), **settings).eval()
    x = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    save_model(model, tmp_path / "m.safetensors", rule="a test")
    again = load_model(tmp_path / "m.safetensors")
    with torch.no_grad():
        assert torch.equal(again(x), model(x))
        plain = model.backbone(
            (x - torch.tensor([0.4, 0.5, 0.6]).view(1, 3, 1, 1)) / torch.tensor([0.2, 0.3, 0.4]).view(1, 3, 1, 1)
        )
        assert torch.allclose(model(x), plain, atol=1e-6)
    assert model(x).shape == (2, 7)
    assert fingerprint(again) == fingerprint(model)


def test_weights_keep_timms_own_keys(tmp_path, vit):
    from safetensors import safe_open

    save_model(vit, tmp_path / "m.safetensors")
    with safe_open(tmp_path / "m.safetensors", framework="pt") as file:
        assert set(file.keys()) == set(vit.backbone.state_dict())


def test_the_fingerprint_sees_weights_and_normalization(vit):
    same, other = tiny_vit(), tiny_vit()
    assert fingerprint(same) == fingerprint(vit)
    with torch.no_grad():
        other.backbone.head.bias[0] += 1e-6
    assert fingerprint(other) != fingerprint(vit)
    assert fingerprint(normalized(vit.backbone, (0.3,), (0.4,))) != fingerprint(vit)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("vit_tny_patch16_224", {}, "did you mean 'vit_tiny_patch16_224'"),
        ("vit_tiny_patch16_224", {"dpth": 3}, "dpth"),
        ("swin_tiny_patch4_window7_224", {"layers": 3}, "no setting 'layers'"),
        ("poolformer_s12", {"layers": 3}, "no setting 'layers'"),
        ("resnet18", {"patch_size": 4}, "patch_size"),
        ("xcit_nano_12_p16_224", {"patch_size": 3}, "cuts patches of 1, 2, 4 ... 16 pixels, not 3"),
        ("vit_tiny_patch16_224", {"patch_size": 5, "img_size": 32}, "patches of 5 pixels don't divide an image of 32"),
        ("vit_tiny_patch16_224", {"patch_size": 5}, "patches of 5 pixels don't divide an image of 224"),
        ("vit_tiny_patch16_224", {"img_size": 100}, "patches of 16 pixels don't divide an image of 100"),
        ("cait_s12_224", {"img_size": 30, "depth": 1}, "patches of 16 pixels don't divide an image of 30"),
        ("swin_tiny_patch4_window7_224", {"img_size": 30}, "patches of 4 pixels don't divide an image of 30"),
        ("levit_128s", {"img_size": 30}, "patches of 16 pixels don't divide an image of 30"),
        ("densenet121", {"patch_size": 4}, "its first layer can't be made finer"),
        ("wideresnet", {"depth": 29}, "6 n \\+ 4"),
        ("resnet18", {"mean": (0.5, 0.5)}, "one number or three"),
        ("resnet18", {"std": (0.0,)}, "above 0"),
    ],
)
def test_what_cannot_be_built_is_refused_in_one_clear_line(name, settings, message):
    with pytest.raises(UserError, match=message) as caught:
        create_model(name, **settings)
    assert "\n" not in str(caught.value)


def test_an_image_too_small_for_its_stages_is_refused_or_classified():
    """timm pads odd stages of a Swin since 1.0.31; before, its windows had no pixels and the forward pass failed."""
    images = torch.rand(2, 3, 28, 28)
    if Version(timm.__version__) < Version("1.0.31"):
        with pytest.raises(UserError, match="28 pixels is too small for its stages"):
            create_model("swin_tiny_patch4_window7_224", img_size=28)
    else:
        assert create_model("swin_tiny_patch4_window7_224", img_size=28, num_classes=3)(images).shape == (2, 3)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("vit_so400m_patch14_siglip_384", {"img_size": 384, "depth": 1}),
        ("vit_tiny_patch16_224", {"img_size": 30, "depth": 1, "dynamic_img_pad": True}),
        ("convnext_atto", {"img_size": 30}),
    ],
)
def test_a_models_own_size_and_layers_that_pad_are_nobodys_mistake(name, settings):
    assert create_model(name, num_classes=3, **settings)


def test_costs_are_parameters_and_multiply_adds():
    model = create_model("vit_base_patch16_224", num_classes=10, img_size=32, patch_size=2, depth=1)
    cost = model_cost(model, 32)
    assert cost.parameters == sum(p.numel() for p in model.parameters())
    tokens, width = 257, 768
    expected = 12 * tokens * width**2 + 2 * tokens**2 * width + 256 * 12 * width + 10 * width
    assert cost.multiply_adds == pytest.approx(expected, rel=1e-3)


def test_a_pickle_that_would_run_code_is_never_loaded(tmp_path, monkeypatch):
    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "sprung"),)

    with (tmp_path / "plain.pt").open("wb") as file:
        pickle.dump({"state_dict": Trap()}, file)
    torch.save({"state_dict": Trap()}, tmp_path / "zip.pt")
    torch.save(nn.Linear(2, 2), tmp_path / "module.pt")
    for name in ("plain.pt", "zip.pt", "module.pt"):
        with pytest.raises(UserError, match="could run code|not a whole"):
            load_model(tmp_path / name, ModelSettings(name="resnet18"))
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("name", ["x.safetensors", "x.pt"])
@pytest.mark.parametrize("content", [b"", b"noise" * 100, b"\x80\x02}"])
def test_files_of_noise_are_refused_in_one_clear_line(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=name):
        load_model(tmp_path / name, ModelSettings(name="resnet18"))


def test_a_truncated_checkpoint_is_refused(tmp_path, vit):
    save_model(vit, tmp_path / "m.safetensors")
    data = (tmp_path / "m.safetensors").read_bytes()
    (tmp_path / "m.safetensors").write_bytes(data[: len(data) // 2])
    with pytest.raises(UserError, match="not a whole"):
        load_model(tmp_path / "m.safetensors")


def test_modes_and_gradients_come_back_as_they_were(vit):
    vit.train()
    vit.backbone.blocks[0].eval()
    vit.backbone.head.weight.requires_grad_(False)
    modes = [module.training for module in vit.modules()]
    wanted = [parameter.requires_grad for parameter in vit.parameters()]
    with pytest.raises(RuntimeError), eval_mode(vit):
        assert not any(module.training for module in vit.modules())
        assert not any(parameter.requires_grad for parameter in vit.parameters())
        raise RuntimeError
    with in_mode(vit, "train"):
        assert all(module.training for module in vit.modules())
    assert [module.training for module in vit.modules()] == modes
    assert [parameter.requires_grad for parameter in vit.parameters()] == wanted


PAPERS = [model for models in paper_models().values() for model in models]


@pytest.mark.parametrize("model", PAPERS, ids=lambda model: model.title)
def test_the_papers_models_have_the_papers_sizes(model):
    """Parameters to 1 %, or to the whole million that is printed, or for a named reason; multiply-adds to 2 %."""
    cost = model.count()
    assert cost == model.cost, "counted: is what robustvit list models shows"
    if model.parameters is not None:
        slack = {"rounded": 1e6, "unexplained": 0.1 * cost.parameters}.get(model.note, 0.01 * cost.parameters)
        assert abs(cost.parameters - 1e6 * model.parameters) <= slack
    if model.multiply_adds is not None:
        counted = cost.multiply_adds
        if model.note == "without_attention":
            counted -= 12 * 2 * 257 * 257 * 768  # QK^T and AV of 12 blocks over 257 tokens
        assert counted == pytest.approx(1e9 * model.multiply_adds, rel=0.02)


@pytest.mark.parametrize(
    ("name", "parameter", "value"),
    [
        *((f"xcit_{size}_12_p16_224", "blocks.0.gamma1", 1.0) for size in ("nano", "small", "medium", "large")),
        ("cait_s12_224", "blocks.0.gamma_1", 0.1),
    ],
)
def test_layer_scale_begins_where_the_paper_prints(name, parameter, value):
    model = create_model(name, num_classes=10)
    assert model.backbone.get_parameter(parameter).unique().tolist() == pytest.approx([value])


SMALL_IMAGES = [
    ("resnetv2_50x1_bit", {}),
    ("vit_tiny_patch16_224", {"patch_size": 4, "depth": 1}),
    ("deit_tiny_patch16_224", {"patch_size": 8, "depth": 1}),
    ("cait_s12_224", {"patch_size": 4, "depth": 1, "embed_dim": 48, "num_heads": 2}),
    ("xcit_nano_12_p16_224", {"patch_size": 4, "depth": 1}),
    ("xcit_nano_12_p16_224", {"patch_size": 2, "depth": 1}),
    ("poolformer_m12", {}),
    ("convnext_atto", {"patch_size": 2}),
    ("resnet18", {"patch_size": 1}),
    ("wideresnet", {"depth": 10, "width": 1, "act_layer": "silu"}),
    ("preact_resnet18", {}),
    ("swin_tiny_patch4_window7_224", {"patch_size": 2, "window_size": 4, "embed_dim": 24, "depths": (1, 1, 1, 1)}),
    ("levit_128s", {}),
]


@pytest.mark.parametrize(("name", "settings"), SMALL_IMAGES, ids=lambda value: value if isinstance(value, str) else "")
def test_every_family_at_32_px_is_attacked_saved_and_loaded(name, settings, tmp_path):
    model = create_model(name, num_classes=10, img_size=32, **settings).eval()
    x, y = torch.rand(2, 3, 32, 32), torch.tensor([1, 2])
    threat = LpBall("inf", 8 / 255)
    x_adv = PGD(steps=1)(model, x, y, threat, Search(sample_streams(0, range(2))))
    assert threat.contains(x, x_adv).all()
    assert not torch.equal(x_adv, x)
    model(x).square().sum().backward()
    learnt = [p.grad is not None and bool(torch.isfinite(p.grad).all()) for p in model.parameters()]
    assert all(learnt)
    save_model(model, tmp_path / "x.safetensors")
    assert torch.equal(load_model(tmp_path / "x.safetensors").eval()(x), model(x))


EXPORTED = {
    "deit_tiny_distilled_patch16_224": {"patch_size": 4, "depth": 1},
    "levit_128s": {},
    "xcit_medium_12_p16_224": {"embed_dim": 32, "num_heads": 2},
    "cait_s12_224": {"patch_size": 4, "depth": 1, "embed_dim": 48, "num_heads": 2},
    "swin_tiny_patch4_window7_224": {"patch_size": 2, "window_size": 4, "embed_dim": 24, "depths": (1, 1, 1, 1)},
}
TIMM_ALONE = """
import sys, timm, torch
for folder in sys.argv[1:]:
    model = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    x, logits = torch.load(f"{folder}/expected.pt")
    mean, std = (torch.tensor(model.pretrained_cfg[key]).view(1, 3, 1, 1) for key in ("mean", "std"))
    torch.testing.assert_close(model((x - mean) / std), logits)
assert "robustvit" not in sys.modules
"""


def test_exported_folders_need_timm_alone(tmp_path):
    x = torch.rand(2, 3, 32, 32)
    for name, settings in EXPORTED.items():
        model = create_model(name, num_classes=7, img_size=32, mean=(0.4, 0.5, 0.6), std=(0.3,), **settings).eval()
        export_model(model, tmp_path / name)
        torch.save((x, model(x).detach()), tmp_path / name / "expected.pt")
    folders = [str(tmp_path / name) for name in EXPORTED]
    done = subprocess.run([sys.executable, "-c", TIMM_ALONE, *folders], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "cait_s12_224" / "config.json").read_text())["architecture"] == "cait_s24_224"


def test_what_timm_would_build_otherwise_is_not_exported(tmp_path):
    model = create_model("resnet18", num_classes=7)
    model.backbone.layer1 = nn.Identity()
    with pytest.raises(UserError, match="timm would not build 'resnet18' again"):
        export_model(model, tmp_path / "out")
    with pytest.raises(UserError, match="timm has no 'poolformer_m12'"):
        export_model(create_model("poolformer_m12", num_classes=7), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_export_goes_into_the_run_of_its_checkpoint(tmp_path, monkeypatch, vit):
    monkeypatch.chdir(tmp_path)
    save_model(vit, tmp_path / "mine" / "checkpoints" / "last.safetensors")
    (tmp_path / "mine" / "recipe.yaml").write_text("name: mine\n")
    done = CliRunner().invoke(app, ["export", "mine/checkpoints/last.safetensors"])
    assert done.output.strip() == "mine/export"
    save_file({"x": torch.zeros(1)}, tmp_path / "bare.safetensors")
    for what in ("bare.safetensors", "hf_hub:a/b", "resnet18"):
        done = CliRunner().invoke(app, ["export", what])
        assert "export takes a run folder" in " ".join(done.output.split())


def test_pretrained_weights_that_nobody_has_published_are_no_matter_of_a_network():
    with pytest.raises(UserError, match="nobody has published pretrained weights of this name$"):
        create_model("xcit_medium_12_p16_224", pretrained=True)


def test_xcit_keeps_the_last_strides_and_its_weights_shapes():
    plain, fine = (create_model("xcit_nano_12_p16_224", img_size=32, patch_size=p, depth=1) for p in (None, 4))
    strides = [layer[0].stride[0] for layer in fine.backbone.patch_embed.proj if isinstance(layer, torch.nn.Sequential)]
    assert strides == [1, 1, 2, 2]
    assert {k: v.shape for k, v in plain.state_dict().items()} == {k: v.shape for k, v in fine.state_dict().items()}
    assert fine.backbone.patch_embed(torch.rand(1, 3, 32, 32))[0].shape[1] == 64


def test_threads_that_count_operations_leave_fused_attention_as_it_was():
    both, left = Barrier(2), Event()

    def first():
        with counted_operations():
            both.wait()
        left.set()

    def second():
        both.wait()
        with counted_operations():
            left.wait()

    threads = [Thread(target=work) for work in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert torch.backends.cuda.flash_sdp_enabled()

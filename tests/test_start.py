"""Weights to start from: what fits is taken, what can be resized is, and the rest is reported."""

import json

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import nn

import robustvit as rv
from conftest import tiny_vit
from robustvit.core.errors import UserError
from robustvit.models import load_model, normalized, save_model
from robustvit.models.attention_factors import set_attention_factors
from robustvit.models.export import export_model
from robustvit.models.normalize import matches, parameter_names
from robustvit.models.start import Start
from robustvit.models.weights import extra_state
from test_training import TINY

SMALL = {"embed_dim": 24, "depth": 2, "num_heads": 2}
NORM = {"mean": (0.3,), "std": (0.38,)}


def vit(size=32, patch=8, classes=10, **more):
    return rv.create_model(
        "vit_tiny_patch16_224", img_size=size, patch_size=patch, num_classes=classes, **{**NORM, **more}, **SMALL
    )


@pytest.fixture
def weights(tmp_path):
    model = vit()
    save_model(model, tmp_path / "w.safetensors")
    return model, str(tmp_path / "w.safetensors")


def test_the_same_model_gets_every_tensor(weights):
    model, path = weights
    other = vit()
    started = Start(weights=path)(other)
    assert (started.resized, started.new, started.unused) == ((), (), ())
    assert started.matched == len(model.backbone.state_dict())
    x = torch.rand(2, 3, 32, 32)
    assert torch.equal(model.eval()(x), other.eval()(x))


def test_patches_and_positions_are_resized_as_timm_does(weights):
    model, path = weights
    finer = vit(patch=4)
    started = Start(weights=path)(finer)
    assert sorted(name.split()[0] for name in started.resized) == ["patch_embed.proj.weight", "pos_embed"]
    expected = timm.models.vision_transformer.checkpoint_filter_fn(dict(model.backbone.state_dict()), finer.backbone)
    for name, value in finer.backbone.state_dict().items():
        torch.testing.assert_close(value, expected[name])


def test_a_head_for_other_classes_must_be_named(weights):
    _, path = weights
    with pytest.raises(UserError, match="'head.weight' is 10 x 24 in the file, 7 x 24 in the model.*start.fresh"):
        Start(weights=path)(vit(classes=7))
    started = Start(weights=path, fresh=("head.*",))(vit(classes=7))
    assert started.new == ("head.weight", "head.bias")
    assert "2 new (head.weight, head.bias)" in str(started)


class Wrapped(nn.Module):
    """A network with something added, as adapters are."""

    def __init__(self, vit, added=()):
        super().__init__()
        self.vit, self.gate, self.added_parameters = vit, nn.Linear(4, 4), added

    def forward(self, x):
        return self.vit(x)


def test_a_backbones_weights_go_below_the_prefix_of_a_wrapper(weights, tmp_path):
    model, path = weights

    def wrapped(added=(), **settings):
        return normalized(Wrapped(vit(**settings).backbone, added), **NORM)

    with pytest.raises(UserError, match=r"'gate.weight' \(4 x 4\) is not in the file.*start.fresh"):
        Start(weights=path)(wrapped())
    x = torch.rand(2, 3, 32, 32)
    for start, other in (
        (Start(weights=path, fresh=("gate.*",)), wrapped()),
        (Start(weights=path), wrapped(added=("gate.*",))),
    ):
        started = start(other)
        assert started.new == ("gate.weight", "gate.bias")
        assert started.matched == len(model.backbone.state_dict())
        assert torch.equal(other.eval()(x), model.eval()(x))
    started = Start(weights=path, fresh=("vit.head.*", "gate.*"))(finer := wrapped(patch=4, classes=7))
    assert sorted(name.split()[0] for name in started.resized) == ["vit.patch_embed.proj.weight", "vit.pos_embed"]
    assert set(started.new) == {"vit.head.weight", "vit.head.bias", "gate.weight", "gate.bias"}
    assert finer(x).shape == (2, 7)
    save_model(other, tmp_path / "whole.safetensors")
    started = Start(weights=str(tmp_path / "whole.safetensors"))(wrapped(added=("gate.*",)))
    assert started.new == (), "a checkpoint of the wrapper has them"


@pytest.mark.parametrize(
    ("settings", "tokens"),
    [
        ({}, 1),
        ({"class_token": False, "global_pool": "avg"}, 0),
        ({"reg_tokens": 4}, 5),
        ({"reg_tokens": 4, "no_embed_class": True}, 0),
    ],
)
def test_positions_of_tokens_before_the_patches_stay(settings, tokens, tmp_path):
    coarse, fine = vit(patch=8, **settings), vit(patch=4, **settings)
    save_model(coarse, tmp_path / "w.safetensors")
    Start(weights=str(tmp_path / "w.safetensors"))(fine)
    before, after = coarse.backbone.pos_embed, fine.backbone.pos_embed
    assert after.shape[1] == tokens + 64
    assert torch.equal(before[:, :tokens], after[:, :tokens])
    grid = after[:, tokens:].unflatten(1, (8, 8))
    corners = before[:, tokens:].unflatten(1, (4, 4))
    assert torch.nn.functional.cosine_similarity(grid[0, 0, 0], corners[0, 0, 0], 0) > 0.9


@pytest.mark.parametrize("pattern", ["head.*", "*.head.*", "*head*"])
def test_patterns_speak_the_backbones_own_names(pattern):
    model = vit()
    trained = [name for name, _ in parameter_names(model) if matches(name, [pattern])]
    assert trained == ["head.weight", "head.bias"]
    assert [name for name, _ in parameter_names(model)] == [name for name, _ in model.backbone.named_parameters()]
    assert not matches("backbone.head.weight", ["head.*"])


def test_swin_windows_and_xcit_strides(tmp_path):
    swin = {"embed_dim": 16, "depths": (1, 1), "num_heads": (1, 2), "window_size": 4, **NORM, "num_classes": 10}
    model = rv.create_model("swin_tiny_patch4_window7_224", img_size=32, patch_size=2, **swin)
    save_model(model, tmp_path / "s.safetensors")
    wider = rv.create_model("swin_tiny_patch4_window7_224", img_size=32, patch_size=1, **{**swin, "window_size": 8})
    started = Start(weights=str(tmp_path / "s.safetensors"))(wider)
    assert any("relative_position_bias_table" in name for name in started.resized)
    xcit = {"depth": 1, "embed_dim": 32, "num_heads": 2, "num_classes": 10, **NORM}
    coarse = rv.create_model("xcit_nano_12_p16_224", img_size=32, **xcit)
    save_model(coarse, tmp_path / "x.safetensors")
    fine = rv.create_model("xcit_nano_12_p16_224", img_size=32, patch_size=4, **xcit)
    assert not Start(weights=str(tmp_path / "x.safetensors"))(fine).resized


def test_public_layouts(weights, tmp_path):
    model, _ = weights
    state = {f"module.{name}": value for name, value in model.backbone.state_dict().items()}
    torch.save({"state_dict": state, "model_ema": state}, tmp_path / "two.pth")
    with pytest.raises(UserError, match="several sets of weights"):
        Start(weights=str(tmp_path / "two.pth"))(vit())
    started = Start(weights=str(tmp_path / "two.pth"), key="state_dict")(vit())
    assert started.matched == len(state)
    robustness = {f"module.model.{name}": value for name, value in model.backbone.state_dict().items()}
    robustness |= {
        "module.normalizer.new_mean": torch.full((3, 1, 1), 0.3),
        "module.normalizer.new_std": torch.full((3, 1, 1), 0.38),
    }
    torch.save({"model": robustness}, tmp_path / "library.pt")
    assert Start(weights=str(tmp_path / "library.pt"))(vit()).matched == len(state)
    with pytest.raises(UserError, match="trained with mean and std 0.3,0.3,0.3"):
        Start(weights=str(tmp_path / "library.pt"))(vit(mean=(0.0,), std=(1.0,)))
    for key, value in list(robustness.items()):
        attackers = key.replace("normalizer", "normalize").replace("module.", "module.attacker.")
        robustness[attackers] = value.clone()
    torch.save({"model": robustness}, tmp_path / "library.pt")
    assert Start(weights=str(tmp_path / "library.pt"))(vit()).matched == len(state)
    robustness["module.attacker.model.head.bias"] += 1
    torch.save({"model": robustness}, tmp_path / "library.pt")
    with pytest.raises(UserError, match="two networks that differ .'module.model.head.bias'"):
        Start(weights=str(tmp_path / "library.pt"))(vit())


def test_mistakes_are_reported(weights, tmp_path):
    _, path = weights
    with pytest.raises(UserError, match="no tensor of the model is called hed"):
        Start(weights=path, fresh=("hed",))(vit())
    with pytest.raises(UserError, match="was trained with mean and std"):
        Start(weights=path)(vit(mean=(0.5,), std=(0.5,)))
    with pytest.raises(UserError, match="doesn't fit model.*and \\d+ more"):
        Start(weights=path, resize=False)(rv.create_model("test_resnet", num_classes=10, **NORM))
    with pytest.raises(UserError, match="no such checkpoint"):
        Start(weights="nothing.pt")(vit())
    with pytest.raises(UserError, match="no run folder"):
        Start(weights=str(tmp_path))(vit())


def test_broken_sources_are_reported(weights, tmp_path):
    model, path = weights
    run = tmp_path / "run"
    run.mkdir()
    for rules in ("best", ""):
        (run / "recipe.yaml").write_text(f"name: x\ncheckpoints: {rules}\n")
        with pytest.raises(UserError, match="has checkpoints: .*select: best"):
            Start(weights=str(run))(vit())
    with pytest.raises(UserError, match="neither a torch nor a safetensors checkpoint"):
        Start(weights=str(run / "recipe.yaml"))(vit())
    state = {name: value.clone() for name, value in model.backbone.state_dict().items()}
    made = {"name": "vit_tiny_patch16_224", "mean": [1, 2], "std": [1]}
    save_file(state, tmp_path / "two.safetensors", metadata={"robustvit": json.dumps({"model": made})})
    with pytest.raises(UserError, match="mean: one number or three"):
        Start(weights=str(tmp_path / "two.safetensors"))(vit())
    state["norm.weight"][3] = float("nan")
    torch.save(state, tmp_path / "nan.pt")
    with pytest.raises(UserError, match="'norm.weight' holds NaN or infinity"):
        Start(weights=str(tmp_path / "nan.pt"))(vit())
    torch.save({"model": {**state, "epoch": 3}}, tmp_path / "mixed.pt")
    with pytest.raises(UserError, match="'model' holds 'epoch' next to its tensors"):
        Start(weights=str(tmp_path / "mixed.pt"))(vit())
    torch.save({"model": state, "ema": state}, tmp_path / "two.pt")
    with pytest.raises(UserError, match="choose with start.key"):
        Start(weights=str(tmp_path / "two.pt"))(vit())
    with pytest.raises(UserError, match=r"is it a model of 10 classes \(model.num_classes\)"):
        Start(weights=path)(vit(classes=7))


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("pos_embed", lambda value: torch.zeros(1, 13, 24)),  # 12 patches form no square
        ("pos_embed", lambda value: torch.zeros(1, 0, 24)),
        ("pos_embed", lambda value: torch.zeros(17, 24)),
        ("patch_embed.proj.weight", lambda value: value.flatten(2)),
        ("norm.weight", lambda value: value.long()),
        ("norm.weight", lambda value: value.to(torch.complex64)),
        ("norm.weight", lambda value: value.to_sparse()),
    ],
)
def test_tensors_of_another_kind_are_reported(name, changed, weights, tmp_path):
    model, _ = weights
    state = {key: value.detach().clone() for key, value in model.backbone.state_dict().items()}
    torch.save({**state, name: changed(state[name])}, tmp_path / "odd.pt")
    with pytest.raises(UserError, match=f"doesn't fit model.*'{name}'"):
        Start(weights=str(tmp_path / "odd.pt"))(vit())


def test_half_a_normalization_is_reported(weights, tmp_path):
    model, _ = weights
    state = {f"model.{name}": value for name, value in model.backbone.state_dict().items()}
    torch.save({**state, "normalize.mean": torch.tensor([0.4])}, tmp_path / "half.pt")
    with pytest.raises(UserError, match="a mean of its images and no std"):
        Start(weights=str(tmp_path / "half.pt"))(vit())


def test_odd_factors_in_the_metadata_are_reported(weights, tmp_path):
    model, _ = weights
    state = {name: value.clone() for name, value in model.backbone.state_dict().items()}
    save_file(state, tmp_path / "odd.safetensors", metadata={"robustvit": json.dumps({"attention_factors": 5})})
    with pytest.raises(UserError, match="attention_factors is 5"):
        Start(weights=str(tmp_path / "odd.safetensors"))(vit())


def test_a_normalization_is_reported_by_the_file_or_the_recipe(weights, tmp_path):
    model, path = weights
    torch.save(model.backbone.state_dict(), tmp_path / "bare.pt")
    with pytest.raises(UserError, match="doesn't say how its images were normalized; set model.mean and model.std"):
        Start(weights=str(tmp_path / "bare.pt"))(vit(mean=None, std=None))
    assert Start(weights=str(tmp_path / "bare.pt"))(vit()).renormalized == ""
    other = vit(mean=(0.5,), std=(0.5,))
    started = Start(weights=path, renormalize=True)(other)
    assert "trained with mean and std 0.3 and 0.38" in str(started)
    assert float(other.mean) == 0.5
    x = torch.rand(2, 3, 32, 32)
    torch.testing.assert_close(other.eval()(0.5 * x + 0.5), model.eval()(0.38 * x + 0.3))


def test_attention_factors_come_along(weights, tmp_path):
    model, _ = weights
    set_attention_factors(model, (0.5, 0.05))
    save_model(model, tmp_path / "f.safetensors")
    other = vit()
    started = Start(weights=str(tmp_path / "f.safetensors"))(other)
    assert started.extra_state == extra_state(other) == {"attention_factors": [0.5, 0.05]}
    assert "2 attention factors" in str(started)
    x = torch.rand(2, 3, 32, 32)
    assert torch.equal(other.eval()(x), model.eval()(x))


def test_a_tensor_is_counted_once(weights):
    model, path = weights
    started = Start(weights=path, fresh=("pos_embed",))(vit(patch=4))
    assert (started.new, [name.split()[0] for name in started.resized]) == (("pos_embed",), ["patch_embed.proj.weight"])
    assert started.matched + 2 == len(model.backbone.state_dict())


def test_weights_by_timms_names(weights, tmp_path):
    model, _ = weights
    export_model(model, tmp_path / "out")
    other = vit()
    assert Start(weights=f"local-dir:{tmp_path / 'out'}")(other).matched == len(model.backbone.state_dict())
    x = torch.rand(2, 3, 32, 32)
    torch.testing.assert_close(other.eval()(x), model.eval()(x))
    with pytest.raises(UserError, match="was trained with mean and std 0.3"):
        Start(weights=f"local-dir:{tmp_path / 'out'}")(vit(mean=(0.0,), std=(1.0,)))


@pytest.mark.parametrize("name", ["vit_base_patch16_224.augreg_in1k", "hf_hub:timm/resnet18.a1_in1k"])
def test_names_without_a_network_are_one_clear_line(name, monkeypatch, tmp_path):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(UserError, match="can't be had.*with a network they are downloaded once$"):
        Start(weights=name)(vit())


def test_a_run_starts_from_another_and_resumes_exactly(tmp_path):
    recipe = {**TINY, "epochs": 1}
    first = rv.train(recipe, run=tmp_path / "first", quiet=True)
    tuned = {**recipe, "name": "tuned", "start": {"weights": str(tmp_path / "first"), "fresh": ["head.*"]}}
    whole = rv.train(tuned, run=tmp_path / "whole", quiet=True)
    assert (tmp_path / "whole" / "start.json").exists()
    rv.train(tuned, run=tmp_path / "broken", quiet=True, max_steps=4)
    rv.train(tuned, run=tmp_path / "broken", quiet=True)
    files = [folder / "checkpoints" / "last.safetensors" for folder in (whole.path, tmp_path / "broken")]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert load_model(first.checkpoints / "best.safetensors")


def test_pretrained_weights_without_a_network_are_one_clear_line():
    with pytest.raises(UserError, match="can't be had"):
        Start(weights="pretrained")(tiny_vit())

"""ViT weights of JAX: equal logits under flax's own layers, every leaf used or refused by name, and back."""

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from conftest import tiny_vit
from jax_vit import flax_logits, parameters
from robustvit.cli.main import app
from robustvit.core.errors import UserError
from robustvit.models import load_model, save_model
from robustvit.models.jax_weights import read_jax, write_jax
from robustvit.models.start import Start

KINDS = [
    ("big_vision", "gap", False),
    ("big_vision", "tok", False),
    ("big_vision", "map", False),
    ("big_vision", "gap", True),
    ("sincos2d", "gap", False),
    ("scenic sincos2d", "gap", False),
    ("old", "tok", False),
    ("new", "tok", False),
    ("new", "gap", False),
    ("scenic", "tok", False),
]


def save(path, leaves, prefix=""):
    np.savez(path, **{prefix + name: leaves[name] for name in sorted(leaves)})
    return path


def run(*arguments):
    result = CliRunner().invoke(app, [*map(str, arguments)])
    return result.exit_code, result.output


def converted(path, *more):
    code, output = run("convert", path, "--mean", "0.5", "--std", "0.25,0.5,0.4", *more)
    assert code == 0, output
    return load_model(path.with_suffix(".safetensors"))


@pytest.mark.parametrize(("style", "pool", "scan"), KINDS)
def test_logits_are_those_of_flax_in_float64(tmp_path, style, pool, scan):
    pytest.importorskip("flax", reason="flax isn't installed: make interop")
    rng = np.random.default_rng(0)
    leaves = parameters(rng, style, pool, scan=scan)
    model = converted(save(tmp_path / "w.npz", leaves), *(["--img-size", "12"] if "sincos2d" in style else []))
    images = rng.random((3, 12, 12, 3))
    normalized = (images - 0.5) / np.array([0.25, 0.5, 0.4], np.float32).astype(np.float64)
    expected = flax_logits(leaves, normalized, style, pool, scan=scan)
    with torch.no_grad():
        ours = model.double()(torch.from_numpy(images).permute(0, 3, 1, 2)).numpy()
    assert np.abs(expected).max() > 0.1
    tolerance = 1e-6 if "sincos2d" in style else 1e-12  # the fixed positions are stored in float32
    assert np.abs(ours - expected).max() < tolerance * np.abs(expected).max()


@pytest.mark.parametrize(
    ("style", "pool"), [("big_vision", "gap"), ("big_vision", "tok"), ("big_vision", "map"), ("new", "tok")]
)
def test_there_and_back_gives_equal_bytes(tmp_path, style, pool):
    path = save(tmp_path / "w.npz", parameters(np.random.default_rng(1), style, pool))
    converted(path)
    code, output = run("export", path.with_suffix(".safetensors"), "--format", "npz", "--out", tmp_path / "back.npz")
    assert code == 0, output
    assert (tmp_path / "back.npz").read_bytes() == path.read_bytes()


@pytest.mark.parametrize("prefix", ["", "params/", "opt/target/", "params/img/"])
def test_all_namings_give_the_same_tensors(tmp_path, prefix):
    rng = np.random.default_rng
    one, settings = read_jax(save(tmp_path / "a.npz", parameters(rng(2), "new", "tok")))
    for style, scan in (("old", False), ("scenic", False), ("new", True)):
        other, same = read_jax(save(tmp_path / "b.npz", parameters(rng(2), style, "tok", scan=scan), prefix))
        assert same == settings
        assert all(torch.equal(other[name], one[name]) for name in one)
    assert settings.img_size == 12
    assert settings.settings["no_embed_class"] is False


def test_halves_are_read_exactly(tmp_path):
    leaves = parameters(np.random.default_rng(3), "big_vision", "gap")
    words = {name: leaf.view(np.uint32) >> 16 for name, leaf in leaves.items()}  # bfloat16: the upper half
    cut = {name: (word << 16).view(np.float32) for name, word in words.items()}
    save(tmp_path / "brain.npz", {name: word.astype(np.uint16).view("V2") for name, word in words.items()})
    save(tmp_path / "half.npz", {name: leaf.astype(np.float16) for name, leaf in leaves.items()})
    exact, _ = read_jax(save(tmp_path / "cut.npz", cut))
    state, _ = read_jax(tmp_path / "brain.npz")
    assert all(torch.equal(state[name], exact[name]) for name in exact)
    state, _ = read_jax(tmp_path / "half.npz")
    assert torch.equal(state["head.bias"], torch.from_numpy(leaves["head/bias"].astype(np.float16)).float())


def test_leaves_without_a_place_are_refused_by_name(tmp_path):
    def message(change, *more, pool="gap", prefix=""):
        leaves = parameters(np.random.default_rng(4), "big_vision", pool)
        change(leaves)
        path = save(tmp_path / "w.npz", leaves, prefix)
        code, output = run("convert", path, "--mean", "0.5", "--std", "0.5", *more)
        assert code == 2, output
        assert output.count("\n") == 1
        assert str(path) in output
        return output

    attention = "Transformer/encoderblock_1/MultiHeadDotProductAttention_0"
    assert "'head/scale' has no place in a ViT" in message(lambda x: x.update({"head/scale": x["head/bias"]}))
    two = {"head/scale": np.zeros(5, np.float32), "head/shift": np.zeros(5, np.float32)}
    assert "'head/scale' and 1 more have no place in a ViT" in message(lambda x: x.update(two))
    assert "'head/bias' holds NaN or infinity" in message(lambda x: x["head/bias"].fill(np.inf))
    assert "the file is one itself; leave --weights-key out" in message(lambda x: None, "--weights-key", "img")
    assert "'pre_logits' is a layer with tanh" in message(lambda x: x.update({"pre_logits/bias": x["head/bias"]}))
    assert f"'{attention}/out/bias' is missing" in message(lambda x: x.pop(f"{attention}/out/bias"))
    assert "has no head" in message(lambda x: [x.pop("head/bias"), x.pop("head/kernel")])
    gap = {"Transformer/encoderblock_7/LayerNorm_0/bias": np.zeros(16, np.float32)}
    assert "its blocks aren't numbered from 0 on: [0, 1, 7] ... 7" in message(lambda x: x.update(gap))
    assert "'x' is empty" in message(lambda x: x.update(x=np.zeros((9, 0), np.float32)))
    assert "no leaf is called 'embedding/kernel'" in message(lambda x: x.pop("embedding/kernel"))
    assert "'head/bias' is int64" in message(lambda x: x.update({"head/bias": np.arange(5)}))
    assert "'head/bias' is float64" in message(lambda x: x.update({"head/bias": np.zeros(5)}))
    assert "no 'pos_embedding'; if its positions" in message(lambda x: x.pop("pos_embedding"))
    assert "the file knows its own" in message(lambda x: None, "--img-size", "12")
    assert "'pos_embedding' has 8 positions" in message(lambda x: x.update(pos_embedding=x["pos_embedding"][:, :8]))
    assert "are both the 'Transformer/encoderblock_0/LayerNorm_1/bias'" in message(
        lambda x: x.update({"Transformer/encoderblock_0/LayerNorm_2/bias": x["head/bias"]})
    )
    other_heads = f"'{attention}/query/kernel' is 16 x 4 x 4, in this ViT 16 x 2 x 8"
    assert other_heads in message(
        lambda x: x.update({f"{attention}/query/kernel": x[f"{attention}/query/kernel"].reshape(16, 4, 4)})
    )
    assert "isn't part of the ViT below 'img'; --weights-key img takes" in message(
        lambda x: [x.update({f"img/{name}": x.pop(name) for name in list(x)}), x.update({"txt/t": np.zeros(1)})]
    )


def test_a_part_of_the_tree_may_be_chosen(tmp_path):
    leaves = parameters(np.random.default_rng(5), "big_vision", "map")
    both = {f"params/{tower}/{name}": leaf for tower in ("a", "b") for name, leaf in leaves.items()}
    save(tmp_path / "w.npz", both | {"params/b/head/bias": leaves["head/bias"] + 1})
    with pytest.raises(UserError, match="there are ViTs below 'params/a', 'params/b'; choose with --weights-key"):
        read_jax(tmp_path / "w.npz")
    a, b = (read_jax(tmp_path / "w.npz", f"params/{tower}")[0] for tower in ("a", "b"))
    assert torch.equal(a["head.bias"] + 1, b["head.bias"])


def test_npz_files_are_models_and_starts_as_they_are(tmp_path):
    path = save(tmp_path / "w.npz", parameters(np.random.default_rng(6), "big_vision", "tok"))
    x = torch.rand(2, 3, 12, 12)
    model = load_model(path, mean=(0.5,), std=(0.25, 0.5, 0.4))
    assert torch.equal(model(x), converted(path)(x))
    with pytest.raises(UserError, match="doesn't say how its images were normalized"):
        load_model(path)
    other = model.settings.build()
    assert Start(weights=str(path))(other).matched == len(other.backbone.state_dict())
    assert torch.equal(other.eval()(x), model(x))


def test_only_what_flax_would_compute_alike_is_written(tmp_path):
    def message(**settings):
        save_model(tiny_vit(**settings), tmp_path / "w.safetensors")
        code, output = run("export", tmp_path / "w.safetensors", "--format", "npz", "--out", tmp_path / "w.npz")
        assert code == 2, output
        assert not (tmp_path / "w.npz").exists()
        return output

    flax = {"fc_norm": False, "act_layer": "gelu_tanh"}
    assert "flax's gelu is the tanh approximation" in message(fc_norm=False)
    assert "'fc_norm.bias' is in this model alone" in message(act_layer="gelu_tanh")
    assert "big_vision's ViT has no LayerScale\n" in message(init_values=0.1, **flax)
    assert "big_vision's ViT has no LayerScale and no qk-norm\n" in message(init_values=0.1, qk_norm=True, **flax)
    assert "its normalization, attention or pooling is another" in message(**flax | {"global_pool": "max"})
    zero = tiny_vit(fc_norm=False)
    nn.init.zeros_(zero.backbone.head.weight)
    with pytest.raises(UserError, match="tanh approximation"):  # whatever the head hides
        write_jax(zero, tmp_path / "w.npz")
    save_model(tiny_vit(**flax), tmp_path / "w.safetensors")
    code, output = run("export", tmp_path / "w.safetensors", "--format", "npz", "--out", tmp_path / "w.npy")
    assert (code, "ends in .npz" in output) == (2, True)

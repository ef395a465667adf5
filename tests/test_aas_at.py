"""Attention factors that are the model's own: in training, on disk, and folded into the weights."""

import copy
import json

import numpy as np
import pytest
import timm
import timm.data
import torch
from PIL import Image
from typer.testing import CliRunner

import robustvit as rv
from conftest import tiny_vit
from robustvit.attacks.factor_search import FactorSearch
from robustvit.cli.main import app
from robustvit.core.errors import UserError
from robustvit.core.journal import read_rows
from robustvit.data import Digits
from robustvit.data.preprocess import Preprocess
from robustvit.models import fingerprint, load_model, save_model
from robustvit.models.attention_factors import attention_factors, folded, set_attention_factors
from robustvit.models.attention_probe import Scaling, attention_blocks, probing
from robustvit.models.export import export_model
from robustvit.training.attention_event import AttentionScalingEvent
from test_attention_probe import FAMILIES, built
from test_training import TINY

EVENT = {"name": "attention_scaling", "every": 1, "search": {"batches": 2, "batch_size": 16, "steps": 2}}
RECIPE = {**TINY, "epochs": 3, "events": [EVENT]}


@pytest.fixture
def x():
    return torch.rand(4, 3, 32, 32)


def test_own_factors_act_wherever_the_model_is_called(x):
    model, plain = built("vit"), built("vit")
    set_attention_factors(model, (0.5, 0.1, 0.01))
    with probing(plain, Scaling(torch.tensor([0.5, 0.1, 0.01]))):
        expected = plain(x)
    assert torch.equal(model(x), expected)
    assert list(model.state_dict()) == list(plain.state_dict())
    assert fingerprint(model) != fingerprint(plain)
    other = copy.deepcopy(model)
    set_attention_factors(other, (1.0, 1.0, 1.0))
    assert torch.equal(other(x), plain(x))
    assert torch.equal(model(x), expected)


def test_they_are_saved_with_the_weights(tmp_path, digits):
    model = tiny_vit()
    set_attention_factors(model, (0.25, 1e-3))
    save_model(model, tmp_path / "m.safetensors")
    again = load_model(tmp_path / "m.safetensors")
    assert attention_factors(again) == (0.25, 1e-3)
    assert torch.equal(again(digits[0][:8]), model(digits[0][:8]))


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("family", ["vit", "deit", "cait", "xcit", "swin"])
def test_folding_changes_no_logit(family, fused, x):
    model = built(family, fused).double()
    set_attention_factors(model, torch.linspace(0.05, 0.9, FAMILIES[family][2]).tolist())
    before = model(x.double())
    after = folded(model)
    assert set(attention_factors(after)) == {1.0}
    torch.testing.assert_close(after(x.double()), before, rtol=1e-9, atol=1e-10)


def test_folding_into_normed_queries(x):
    model = timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, depth=2, num_classes=10, qk_norm=True)
    model = model.eval().double()
    set_attention_factors(model, (0.5, 0.1))
    before = model(x.double())
    torch.testing.assert_close(folded(model)(x.double()), before, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(
    "name",
    [
        "levit_128s",
        "pvt_v2_b0",
        "swinv2_cr_tiny_224",
        "beit_base_patch16_224",
        "tnt_s_legacy_patch16_224",
        "caformer_s18",
        "tiny_vit_5m_224",
    ],
)
def test_what_cannot_be_folded_is_reported(name):
    with torch.device("meta"):
        model = timm.create_model(name)
    set_attention_factors(model, [0.5] * len(attention_blocks(model)))
    with pytest.raises(UserError, match="can't be moved into the weights"):
        folded(model)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    return rv.train(RECIPE, run=tmp_path_factory.mktemp("unbroken"), quiet=True)


def test_the_factors_of_the_last_search_are_the_models_own(unbroken):
    rows = [row for row in read_rows(unbroken.path / "metrics.jsonl") if row["kind"] == "event"]
    assert [row["epoch"] for row in rows] == [1, 2]
    model = load_model(unbroken.checkpoints / "last.safetensors")
    assert attention_factors(model) == tuple(rows[-1]["factors"])
    assert all(1e-7 <= factor <= 1 for row in rows for factor in row["factors"])
    for row in rows:
        assert row["name"] == "attention_scaling"
        assert row["values"] == {"largest": max(row["factors"]), "middle": np.median(row["factors"]),
                                 "smallest": min(row["factors"])}  # fmt: skip


def test_a_search_is_due_after_every_so_many_epochs():
    assert [epoch for epoch in range(13) if AttentionScalingEvent(every=4).is_due(epoch)] == [4, 8, 12]


def test_a_search_starts_from_the_factors_so_far_on_the_model_without_them(monkeypatch):
    model, images = tiny_vit(), Digits().open("train")
    set_attention_factors(model, (0.5, 0.25))
    seen = []

    def search(self, searched, module, batches, seed, start=None):
        seen.append((attention_factors(searched), start, searched.training, sum(len(y) for _, y in batches)))
        return 0.1, 0.2

    monkeypatch.setattr(FactorSearch, "__call__", search)
    model.train()
    row = AttentionScalingEvent(search=FactorSearch(batches=2, batch_size=8))(model, images, "cpu", 0)
    assert seen == [((1.0, 1.0), (0.5, 0.25), False, 16)]
    assert attention_factors(model) == (0.1, 0.2) == tuple(row["factors"])
    assert model.training


def test_a_search_after_the_last_epoch_is_reported(tmp_path, capsys):
    recipe = {**TINY, "epochs": 1, "events": [EVENT]}
    rv.train(recipe, run=tmp_path, max_steps=1)
    assert "attention_scaling is never due in the 1 epochs of main" in capsys.readouterr().err


@pytest.mark.parametrize("stops", [[3], [11, 1], [12, 1, 10]])
def test_a_stopped_run_ends_with_the_weights_of_the_unbroken_one(stops, unbroken, tmp_path):
    for steps in stops:
        rv.train(RECIPE, run=tmp_path, quiet=True, max_steps=steps)
    rv.train(RECIPE, run=tmp_path, quiet=True)
    names = [folder / "checkpoints" / "last.safetensors" for folder in (unbroken.path, tmp_path)]
    assert names[0].read_bytes() == names[1].read_bytes()
    rows = [[row["epoch"] for row in read_rows(folder / "metrics.jsonl") if row["kind"] == "event"]
            for folder in (unbroken.path, tmp_path)]  # fmt: skip
    assert rows[0] == rows[1]


def test_a_model_without_attention_is_reported(tmp_path):
    recipe = {**RECIPE, "model": {"name": "test_resnet", "num_classes": 10, "mean": [0.3], "std": [0.4]}}
    with pytest.raises(UserError, match="no attention"):
        rv.train(recipe, run=tmp_path, quiet=True)


@pytest.mark.parametrize("factors", [None, (0.5, 0.1)])
def test_an_exported_folder_is_loaded_by_timm(factors, tmp_path, digits):
    model = tiny_vit()
    if factors:
        set_attention_factors(model, factors)
    export_model(model, tmp_path / "out")
    loaded = timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True).eval()
    x = digits[0][:16]
    mean, std = (torch.tensor(loaded.pretrained_cfg[key]).view(1, 3, 1, 1) for key in ("mean", "std"))
    torch.testing.assert_close(loaded((x - mean) / std), model(x), rtol=1e-4, atol=1e-5)
    assert attention_factors(model) == factors


def test_an_adapted_family_in_its_own_patch_size_is_exported(tmp_path):
    model = rv.create_model("xcit_nano_12_p16_224", img_size=32, patch_size=16, num_classes=10, depth=1).eval()
    export_model(model, tmp_path)
    x = torch.rand(2, 3, 32, 32)
    loaded = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()
    mean, std = (torch.tensor(loaded.pretrained_cfg[key]).view(1, 3, 1, 1) for key in ("mean", "std"))
    torch.testing.assert_close(loaded((x - mean) / std), model(x), rtol=1e-4, atol=1e-5)


def test_how_much_of_a_picture_the_model_sees_is_exported(tmp_path):
    for label in "ab":
        (tmp_path / "pictures" / label).mkdir(parents=True)
        for number in range(4):
            Image.new("RGB", (20, 12), (60 * number, 0, 0)).save(tmp_path / "pictures" / label / f"{number}.png")
    data = {"name": "folder", "path": str(tmp_path / "pictures"),
            "preprocess": {"how": "crop", "size": 8, "crop_fraction": 0.5}}  # fmt: skip
    recipe = {**TINY, "data": data, "epochs": 1, "batch_size": 2, "validation": {"hold_out": 2}}
    run = rv.train({**recipe, "model": {**TINY["model"], "num_classes": 2}}, run=tmp_path / "run", quiet=True)
    assert CliRunner().invoke(app, ["export", str(run.path)]).exit_code == 0
    config = json.loads((run.path / "export" / "config.json").read_text())["pretrained_cfg"]
    assert (config["crop_pct"], config["crop_mode"], config["interpolation"]) == (0.5, "center", "bicubic")
    squashed = Preprocess(size=8, how="squash", interpolation="bilinear").timm_config()
    transform = timm.data.create_transform((3, 8, 8), mean=(0, 0, 0), std=(1, 1, 1), **squashed)
    wide = Image.fromarray(np.random.default_rng(0).integers(0, 256, (16, 32, 3), dtype=np.uint8))
    np.testing.assert_array_equal(
        np.asarray(wide.resize((8, 8), Image.Resampling.BILINEAR)),
        (transform(wide) * 255).round().permute(1, 2, 0).numpy(),
    )


def test_what_timm_cannot_load_is_reported(tmp_path):
    with pytest.raises(UserError, match="other strides"):
        model = rv.create_model("xcit_nano_12_p16_224", img_size=32, patch_size=4, num_classes=10, depth=1)
        export_model(model, tmp_path)
    with pytest.raises(UserError, match="timm has no"):
        export_model(rv.create_model("wideresnet", depth=10, width=1, num_classes=10), tmp_path)
    with pytest.raises(UserError, match="create_model"):
        export_model(torch.nn.Linear(2, 2), tmp_path)

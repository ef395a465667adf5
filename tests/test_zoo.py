"""The models that come with the package, and those it can build but timm can't name."""

import hashlib
import re

import pytest
import torch
import yaml
from typer.testing import CliRunner

import robustvit as rv
from healthy import available_models
from robustvit.cli.main import app
from robustvit.core.errors import UserError
from robustvit.core.result_files import write_result
from robustvit.evaluation.given import resolve_given
from robustvit.models import attention_probe, zoo
from robustvit.models.cost import model_cost
from robustvit.training import recipe_from


@pytest.mark.parametrize("recipe", ["cifar10/speedrun", "cifar10/speedrun_2h", "zoo/vit_standard"])
def test_the_stem_vit_spends_its_pass_in_blocks(recipe):
    """At least half of the multiply-adds lie in attention and MLP blocks, so that it may be called a ViT."""
    model = recipe_from(recipe).model.build()
    whole = model_cost(model, 32)
    for block in (*model.backbone.blocks, *model.backbone.patch_embed.blocks):
        block.forward = lambda x, **ignored: x
    rest = model_cost(model, 32)
    assert rest.multiply_adds < 0.5 * whole.multiply_adds
    assert 1e6 < whole.parameters < 5e6


def test_the_stem_vit_is_a_vit_of_timm_with_finer_tokens_first():
    model = rv.create_model("stem_vit_32", num_classes=10, class_token=True, global_pool="token", depth=2).eval()
    blocks = attention_probe.attention_blocks(model)
    assert list(blocks) == ["backbone.patch_embed.blocks.0.attn", "backbone.blocks.0.attn", "backbone.blocks.1.attn"]
    tokens = []
    for block in blocks.values():
        block.register_forward_hook(lambda module, inputs, output: tokens.append(output.shape[1:]))
    assert torch.equal(model(torch.rand(2, 3, 32, 32)), torch.zeros(2, 10)), "its head begins at 0"
    assert tokens == [(64, 96), (17, 192), (17, 192)]
    with pytest.raises(UserError, match="its tokens of 8 pixels don't divide an image of 36"):
        rv.create_model("stem_vit_32", num_classes=10, img_size=36)
    for shape in ((3, 64, 16), (3, 40, 40)):  # as many tokens as it has positions, and more
        with pytest.raises(AssertionError, match=f"images of {shape[1]} x {shape[2]} pixels, where the model takes 32"):
            model(torch.rand(2, *shape))


def test_residual_convolutions_of_the_stem_vit():
    plain, fine, coarse = (
        rv.create_model("stem_vit_32", num_classes=10, residual=residual).eval().double()
        for residual in ((0, 0), (1, 0), (0, 2))
    )
    costs = [model_cost(model, 32).multiply_adds for model in (plain, fine, coarse)]
    assert costs[1] - costs[0] == 2 * 9 * 32 * 32 * 16 * 16
    assert costs[2] - costs[0] == 4 * 9 * 96 * 96 * 8 * 8
    images = torch.rand(3, 3, 32, 32, dtype=torch.float64)
    coarse.backbone.head = torch.nn.Identity()
    torch.testing.assert_close(coarse(images)[1:2], coarse(images[1:2]), msg="no image depends on its neighbors")
    with torch.no_grad():
        before = coarse(images)
        for block in coarse.backbone.patch_embed.residual2:
            block.conv2.weight.zero_()
            block.conv2.bias.zero_()
        after = coarse(images)
    assert not torch.allclose(before, after), "the blocks do something"
    plain.load_state_dict(coarse.state_dict(), strict=False)
    plain.backbone.head = torch.nn.Identity()
    torch.testing.assert_close(plain(images), after, msg="and add to what they see")


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"residual": [-1, 0]}, "none below 0"),
        ({"early_depth": -1}, "none below 0"),
        ({"residual": [1]}, "two numbers of blocks"),
        ({"patch_size": 4}, "its tokens have 8 pixels"),
    ],
)
def test_mistakes_in_the_settings_of_the_stem_vit(settings, problem):
    with pytest.raises(UserError, match=problem):
        rv.create_model("stem_vit_32", num_classes=10, **settings)


EXACT = "d500fb6a9ddc0feec6fd0cadecbf5fa41fc4a091cd13ed775279b2d0b4edbb97"
"""Digest of the published test images in their order."""


@pytest.fixture
def a_zoo(tmp_path, monkeypatch, trained_vit):
    """Of one entry."""
    folder = tmp_path / "zoo" / "small"
    folder.mkdir(parents=True)
    rv.models.save_model(trained_vit, folder / zoo.WEIGHTS)
    sha256 = hashlib.sha256((folder / zoo.WEIGHTS).read_bytes()).hexdigest()
    facts = {"about": "a small one", "recipe": "digits/trades", "commit": "0" * 40, "seed": 0, "cpu_seconds": 1.5}
    facts |= {"processor": "?", "parameters": 1, "multiply_adds": 1, "sha256": sha256, "limits": "-", "license": "-"}
    facts |= {"search": "none"}
    (folder / zoo.CARD).write_text(yaml.safe_dump(facts))
    monkeypatch.setattr(zoo, "ZOO", folder.parent)
    return folder


def test_a_model_of_the_zoo_by_name(a_zoo, trained_vit):
    ref = rv.models.resolve_model("zoo:small")
    assert (ref.title, ref.source, ref.checkpoint["name"]) == ("small", "zoo:small", "zoo:small")
    ours, theirs = (model.state_dict() for model in (rv.load_model("zoo:small"), trained_vit))
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)


def test_the_list_has_a_line_for_each(a_zoo, trained_vit, digits):
    options = {"suite": "fgsm", "threat": rv.LpBall("inf", 0.1), "images": 20, "quiet": True, "checks": False}
    write_result(a_zoo, rv.evaluate(a_zoo / zoo.WEIGHTS, digits, **options))
    lines = CliRunner().invoke(app, ["list", "zoo"]).stdout.splitlines()
    (line,) = (line for line in lines if "zoo:small" in line)
    assert re.search(
        r"zoo:small +a small one; fgsm at Linf 0.1 on 20 images: clean [0-9.]+ % .*, robust [0-9.]+ %", line
    )


def test_the_probes_see_every_model_of_the_zoo(a_zoo, trained_vit, tmp_path):
    (ours,) = (healthy for healthy in available_models() if healthy.title == "zoo:small")
    recipe = recipe_from("digits/trades")
    assert (ours.data, ours.threat) == (recipe.data, recipe.threat)
    theirs = trained_vit.state_dict()
    assert all(torch.equal(tensor, theirs[key]) for key, tensor in ours.load(tmp_path).state_dict().items())


def test_names_and_files_of_the_zoo_are_checked(a_zoo):
    with pytest.raises(UserError, match="has no model 'smal'; did you mean 'small'.$"):
        rv.load_model("zoo:smal")
    with pytest.raises(UserError, match="has no model 'SMALL'; did you mean 'small'.$"):
        rv.load_model("zoo:SMALL")
    with pytest.raises(UserError, match="--checkpoint best: a model of the zoo has one"):
        rv.models.resolve_model("zoo:small", rv.models.ModelHints(checkpoint="best", command_line=True))
    weights = bytearray((a_zoo / zoo.WEIGHTS).read_bytes())
    weights[-1] ^= 1
    (a_zoo / zoo.WEIGHTS).write_bytes(weights)
    with pytest.raises(UserError, match="model.safetensors: damaged .* install robustvit anew"):
        rv.load_model("zoo:small")
    with pytest.raises(UserError, match="result.json: .*; install robustvit anew"):
        zoo.zoo_result("small")
    (a_zoo / zoo.CARD).write_text("[]")
    with pytest.raises(UserError, match="card.yaml.*; install robustvit anew"):
        zoo.zoo_card("small")
    code = CliRunner().invoke(app, ["leaderboard", "zoo:small", "--out", str(a_zoo / "page.html")]).exit_code
    assert (code, (a_zoo / "page.html").exists()) == (2, False)


@pytest.mark.parametrize("name", [zoo.WEIGHTS, zoo.CARD])
def test_missing_files_of_the_zoo(a_zoo, name):
    (a_zoo / name).unlink()
    with pytest.raises(UserError, match=f"{name}: .*; install robustvit anew"):
        rv.load_model("zoo:small")


def test_the_result_of_other_weights_is_no_result(a_zoo, trained_vit, digits, tmp_path):
    options = {"suite": "fgsm", "threat": rv.LpBall("inf", 0.1), "images": 20, "quiet": True, "checks": False}
    rv.models.save_model(trained_vit, tmp_path / zoo.WEIGHTS, note="other")
    write_result(a_zoo, rv.evaluate(tmp_path / zoo.WEIGHTS, digits, **options))
    with pytest.raises(UserError, match="its result is not of the weights that its card describes; install"):
        zoo.zoo_result("small")


def test_a_digest_in_the_name_of_a_leaderboards_model(a_zoo, digits, tmp_path):
    options = {"suite": "fgsm", "threat": rv.LpBall("inf", 0.1), "images": 20, "quiet": True, "checks": False}
    write_result(a_zoo, rv.evaluate(a_zoo / zoo.WEIGHTS, digits, **options))
    digest = rv.models.resolve_model("zoo:small").digest
    for given, code in ((digest, 0), ("0" * 8, 2)):
        page = tmp_path / f"{given}.html"
        done = CliRunner().invoke(app, ["leaderboard", f"zoo:small#{given}", "--out", str(page)])
        assert (done.exit_code, page.exists()) == (code, code == 0)


@pytest.mark.parametrize("name", zoo.zoo_names())
def test_an_entry_is_whole(name):
    """Weights, card and result belong together; its clean accuracy is that of the weights."""
    card, result = zoo.zoo_card(name), zoo.zoo_result(name)
    model = rv.load_model(f"zoo:{name}")
    cost = model_cost(model, 32)
    assert (card.parameters, card.multiply_adds) == (cost.parameters, cost.multiply_adds)
    assert result.provenance.checkpoint["sha256"] == card.sha256
    assert re.fullmatch(r"last epoch \([0-9]+\)", result.provenance.checkpoint["rule"])
    assert result.title == "autoattack"
    assert result.num_images >= 1000
    assert (result.provenance.data, result.provenance.data_sha256) == ("cifar10/test", EXACT)
    recipe = recipe_from(card.recipe, card.overrides)
    assert recipe.seed == card.seed
    assert (card.search == "none") == (result.robust_accuracy == 0)
    known = resolve_given(f"zoo:{name}", "cifar10_sample", None)
    assert known.threat == recipe.threat, "an evaluation may leave it out"
    assert (result.threat.norm, result.threat.eps) == (known.threat.norm, known.threat.eps)
    x, y = rv.load_data("cifar10_sample", 100)
    right = (model(x).argmax(1) == y).sum().item()
    expected = round(100 * result.clean_accuracy)
    assert abs(right - expected) <= 15, "a fifth of a percent by chance"


def test_the_zoo_stays_small():
    assert sum(path.stat().st_size for path in zoo.ZOO.rglob("*") if path.is_file()) <= 30e6

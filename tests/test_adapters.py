"""Adapters in a frozen vision transformer: TORA-ViT and its baselines."""

import copy
import itertools

import pytest
import torch
from torch import nn

from conftest import token_vit
from robustvit.core.errors import UserError
from robustvit.models import create_model, head_names, load_model, model_cost, save_model, through
from robustvit.models.attention_factors import set_attention_factors
from robustvit.models.attention_probe import ScoreObserver, attention_blocks, probing
from robustvit.models.create import ModelSettings
from robustvit.models.export import export_model
from robustvit.models.layout import Layout, layout_of
from robustvit.models.start import Start

VARIANTS = [
    *({"name": "tora", "gate_scale": scale, "form": form}
      for scale, form in itertools.product(("count", "root", "none"), ("short", "literal"))),
    *({"name": "tora", "softmax": softmax} for softmax in ("per_token", "token", "all")),
    {"name": "tora", "softmax": "per_token", "form": "literal"},
    {"name": "single"},
    {"name": "heads"},
]  # fmt: skip
TORA = [variant for variant in VARIANTS if variant["name"] == "tora"]


def mixed_up(model: nn.Module) -> nn.Module:
    """Every parameter random, so that nothing is 0 and no two are equal."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


@pytest.fixture
def x() -> torch.Tensor:
    return torch.rand(9, 3, 8, 8)


def variants(chosen=None):
    chosen = VARIANTS if chosen is None else chosen
    return pytest.mark.parametrize("adapters", chosen, ids=lambda adapters: "-".join(map(str, adapters.values())))


@pytest.mark.parametrize(
    ("adapters", "parameters", "giga"),
    [
        (None, 86_567_656, 17.56),
        ({"name": "heads"}, 88_105_656, 17.56),  # printed: 88.1 M, 17.6 G
        ({"name": "single"}, 88_231_184, 17.74),  # printed: 88.3 M, 17.8 G
        ({"name": "tora", "softmax": "per_token", "form": "literal"}, 111_156_024, 24.88),  # printed: 111.2 M, 24.9 G
        ({"name": "tora", "softmax": "per_token"}, 111_156_024, 23.49),
        ({"name": "tora", "form": "literal"}, 111_156_024, 26.32),  # printed: 111.2 M, 26.0 G
        ({"name": "tora"}, 111_156_024, 24.21),
    ],
)
def test_sizes_of_vit_b16_are_those_of_the_paper(adapters, parameters, giga):
    with torch.device("meta"):
        cost = model_cost(create_model("vit_base_patch16_224", adapters=adapters), 224)
    assert cost.parameters == parameters
    assert cost.multiply_adds / 1e9 == pytest.approx(giga, abs=0.006)


@variants()
def test_every_output_begins_as_the_backbones_bit_for_bit(adapters, x):
    plain, adapted = token_vit(), token_vit(adapters)
    adapted.backbone.vit.load_state_dict(plain.backbone.state_dict())
    for head in adapted.backbone.heads.values():
        head.load_state_dict(plain.backbone.head.state_dict())
    assert all(torch.equal(through(adapted, head)(x), plain(x)) for head in head_names(adapted))


@pytest.mark.parametrize(
    "settings", [{"softmax": "per_token"}, *({"gate_scale": scale} for scale in ("count", "root", "none"))]
)
def test_the_short_form_equals_the_literal_one(settings, x):
    short = mixed_up(token_vit({"name": "tora", **settings})).double()
    literal = token_vit({"name": "tora", "form": "literal", **settings}).double()
    literal.load_state_dict(short.state_dict())
    tokens = torch.randn(3, 4, 17, 32, dtype=torch.float64)
    pairs = list(zip(*(model.backbone.adapters[0].fusion(*tokens) for model in (short, literal)), strict=True))
    pairs += [tuple(through(model, head)(x.double()) for model in (short, literal)) for head in head_names(short)]
    for actual, expected in pairs:
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12 * float(expected.detach().abs().max()))


@variants()
def test_every_head_sees_the_patches(adapters, x):
    """At the start and after steps; [ACC] as printed, an adapter of the token before, would have a gradient of 0."""
    model = token_vit(adapters)
    y = torch.arange(9)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        for head in head_names(model):
            pixels = x.clone().requires_grad_()
            through(model, head)(pixels)[:, 0].sum().backward()
            assert pixels.grad.flatten(1).abs().amax(1).min() > 0
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    unused = {name for name, p in model.backbone.named_parameters() if p.grad is None or not p.grad.any()}
    no_gradient = {name for name in unused if not name.startswith("vit.head.")}
    if adapters.get("form", "short") == "short" and adapters.get("softmax", "adapter") in ("adapter", "per_token"):
        no_gradient = {name for name in no_gradient if not name.endswith("fusion.key.bias")}  # it cancels
    assert not no_gradient


@variants(TORA)
def test_swapping_adapters_and_heads_swaps_their_logits(adapters, x):
    model = mixed_up(token_vit(adapters)).double()
    swapped = copy.deepcopy(model)
    for layer in swapped.backbone.adapters:
        layer.acc, layer.rob = layer.rob, layer.acc
    heads = swapped.backbone.heads
    heads["acc"], heads["rob"] = heads["rob"], heads["acc"]
    acc, rob, joint = (through(model, head)(x.double()) for head in ("acc", "rob", "joint"))
    assert not torch.allclose(acc, rob)
    torch.testing.assert_close(through(swapped, "acc")(x.double()), rob)
    torch.testing.assert_close(through(swapped, "rob")(x.double()), acc)
    torch.testing.assert_close(swapped(x.double()), joint)
    torch.testing.assert_close((acc + rob) / 2, joint)


@variants(TORA)
def test_gates_are_fractions_that_sum_to_one(adapters):
    fusion = mixed_up(token_vit(adapters)).backbone.adapters[0].fusion
    gates = fusion.gates(*torch.randn(3, 4, 17, 32))
    assert gates.min() > 0
    assert gates.max() < 1
    axes = {"adapter": (0,), "per_token": (0,), "token": (0, 3), "all": (0, 3)}[fusion.softmax]
    torch.testing.assert_close(gates.sum(axes), torch.ones_like(gates.sum(axes)))
    if fusion.softmax == "token":
        torch.testing.assert_close(gates.sum(-1), torch.full((2, 4, 17), 0.5))


def test_the_gate_scale_divides_what_is_added(x):
    z, a, r = torch.randn(3, 2, 16, 32)
    added = {}
    for scale in ("count", "root", "none"):
        layer = token_vit({"name": "tora", "gate_scale": scale, "value_init": "identity"}).backbone.adapters[0]
        layer.fusion.load_state_dict(
            token_vit({"name": "tora", "value_init": "identity"}).backbone.adapters[0].fusion.state_dict()
        )
        added[scale] = layer.fusion(z, a, r)[0]
    torch.testing.assert_close(added["none"], 16 * added["count"])
    torch.testing.assert_close(added["none"], 4 * added["root"])


def test_tokens_alone_are_what_the_adapters_add(x):
    """With a value projection of 0 that is nothing; with the identity it is the mean of all tokens."""
    bare = token_vit({"name": "tora", "tokens": "bare"})
    assert torch.equal(bare(x), bare(x)[:1].expand(9, -1))
    layer = token_vit(
        {"name": "tora", "tokens": "bare", "value_init": "identity", "gate_scale": "count"}
    ).backbone.adapters[0]
    z = torch.randn(2, 17, 32)
    following, tokens = layer(z)
    torch.testing.assert_close(following[:, 0], z.mean(1))
    torch.testing.assert_close(tokens.mean(1), following[:, 0])
    torch.testing.assert_close(following[:, 1:], z[:, 1:] + z.mean(1, keepdim=True))


@variants(TORA)
def test_the_next_class_token_is_the_mean_of_both_tokens(adapters):
    layer, z = mixed_up(token_vit(adapters)).backbone.adapters[0], torch.randn(2, 17, 32)
    following, tokens = layer(z)
    torch.testing.assert_close(tokens.mean(1), following[:, 0], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(following - z, layer.fusion(z, layer.acc(z), layer.rob(z))[0], rtol=1e-4, atol=1e-4)


def test_head_only_is_a_linear_probe_of_the_class_token(x):
    model = mixed_up(token_vit({"name": "heads"}))
    vit, heads = model.backbone.vit, model.backbone.heads
    features = vit.forward_features((x - model.mean) / model.std)[:, 0]
    torch.testing.assert_close(through(model, "rob")(x), heads["rob"](features))
    torch.testing.assert_close(model(x), (heads["acc"](features) + heads["rob"](features)) / 2)


def test_a_single_adapter_changes_all_tokens_after_each_block(x):
    model = mixed_up(token_vit({"name": "single"}))
    net = model.backbone
    z = net.vit._pos_embed(net.vit.patch_embed((x - model.mean) / model.std))
    for block, layer in zip(net.vit.blocks, net.adapters, strict=True):
        z = layer.adapter(block(z))
    torch.testing.assert_close(model(x), net.heads["joint"](net.vit.norm(z)[:, 0]))
    assert head_names(model) == ("joint",)


@variants()
def test_a_saved_model_gives_the_same_logits(adapters, x, tmp_path):
    model = mixed_up(token_vit(adapters))
    set_attention_factors(model, [0.3, 2.0])
    save_model(model, tmp_path / "model.safetensors")
    loaded = load_model(tmp_path / "model.safetensors")
    assert all(torch.equal(through(loaded, head)(x), through(model, head)(x)) for head in head_names(model))
    set_attention_factors(loaded, [1.0, 1.0])
    assert not torch.equal(loaded(x), model(x))
    with pytest.raises(UserError, match="timm has no models with adapters"):
        export_model(model, tmp_path / "exported")


@variants()
def test_the_attention_probe_reaches_the_blocks_of_the_backbone(adapters, x):
    model, seen, x = mixed_up(token_vit(adapters)).double(), [], x.double()
    expected = model(x)
    with probing(model, ScoreObserver(lambda block, scores, closed: seen.append((block, tuple(scores.shape))))):
        observed = model(x)
    torch.testing.assert_close(observed, expected)
    assert seen == [(0, (9, 2, 17, 17)), (1, (9, 2, 17, 17))]
    assert list(attention_blocks(model)) == ["backbone.vit.blocks.0.attn", "backbone.vit.blocks.1.attn"]


def test_a_softmax_that_no_module_calls_a_gate_is_still_refused(x):
    model = token_vit({"name": "tora", "softmax": "all"})
    for layer in model.backbone.adapters:
        layer.fusion.not_attention = False
    with pytest.raises(UserError, match="softmax outside"), probing(model, ScoreObserver(lambda *seen: None)):
        model(x)


@pytest.mark.parametrize("head", ["joint", "rob"])
def test_tokens_have_the_places_of_the_backbones(head):
    """Nine tokens could be a grid of 3 x 3; these are a class token, four registers and a grid of 2 x 2."""
    model = through(token_vit("tora", patch_size=4, reg_tokens=4), head)
    assert layout_of(model, (1, 9, 32), (8, 8)) == Layout(5, 2, 2)


class TestStart:
    """Weights to start from go into the backbone; heads begin as copies."""

    def test_weights_of_the_backbone(self, x, tmp_path):
        plain, adapted = mixed_up(token_vit()), token_vit({"name": "tora"})
        save_model(plain, tmp_path / "plain.safetensors")
        started = Start(str(tmp_path / "plain.safetensors"))(adapted)
        assert all(torch.equal(through(adapted, head)(x), plain(x)) for head in head_names(adapted))
        assert started.matched == len(plain.backbone.state_dict())
        assert "adapters.0.acc.down.weight" in started.new
        assert "heads.rob.bias" in started.new
        assert "heads.rob.bias" not in started.random
        assert "adapters.0.acc.down.weight" in started.random
        assert not started.unused

    def test_weights_of_an_adapted_model_keep_its_heads(self, x, tmp_path):
        first, second = mixed_up(token_vit({"name": "tora"})), token_vit({"name": "tora"})
        save_model(first, tmp_path / "first.safetensors")
        assert not Start(str(tmp_path / "first.safetensors"))(second).new
        assert all(torch.equal(through(second, head)(x), through(first, head)(x)) for head in head_names(first))

    def test_other_classes(self, x, tmp_path):
        plain = mixed_up(token_vit())
        plain.backbone.reset_classifier(7)
        save_model(plain, tmp_path / "plain.safetensors")
        adapted = token_vit({"name": "tora"})
        with pytest.raises(UserError, match=r"vit\.head\.weight.*start\.fresh"):
            Start(str(tmp_path / "plain.safetensors"))(adapted)
        Start(str(tmp_path / "plain.safetensors"), fresh=("vit.head.*",))(adapted)
        net = adapted.backbone
        assert torch.equal(net.heads["acc"].weight, net.vit.head.weight)
        assert torch.equal(net.vit.blocks[0].attn.qkv.weight, plain.backbone.blocks[0].attn.qkv.weight)

    def test_heads_that_the_recipe_wants_anew(self, tmp_path):
        save_model(mixed_up(token_vit()), tmp_path / "plain.safetensors")
        adapted = token_vit({"name": "tora"})
        before = adapted.backbone.heads["acc"].weight.clone()
        Start(str(tmp_path / "plain.safetensors"), fresh=("heads.acc.*",))(adapted)
        net = adapted.backbone
        assert torch.equal(net.heads["acc"].weight, before)
        assert torch.equal(net.heads["rob"].weight, net.vit.head.weight)


class TestBadInput:
    @pytest.mark.parametrize(
        ("name", "settings", "problem"),
        [
            ("resnet18", {}, "a timm VisionTransformer with a class token, such as vit_base_patch16_224, not a ResNet"),
            ("deit_tiny_distilled_patch16_224", {}, "whose forward pass VisionTransformerDistilled changes"),
            (
                "vit_tiny_patch16_224",
                {"class_token": False, "global_pool": "avg"},
                "class token; this .* has none: set",
            ),
            ("vit_tiny_patch16_224", {"global_pool": "avg"}, "one, but its head pools by 'avg'"),
            ("vit_base_patch16_siglip_224", {}, "whose head reads a class token; this .* has none"),
        ],
    )
    def test_another_kind_of_model(self, name, settings, problem):
        with torch.device("meta"), pytest.raises(UserError, match=f"model.adapters: .*{problem}"):
            create_model(name, adapters="tora", **settings)

    @pytest.mark.parametrize(
        ("adapters", "problem"),
        [
            ("torra", "did you mean 'tora'"),
            ({"name": "tora", "softmax": "rows"}, "softmax"),
            (
                {"name": "tora", "softmax": "token", "gate_scale": "count"},
                "gate_scale: only softmax: adapter is scaled",
            ),
            ({"name": "tora", "bottleneck": 0}, "bottleneck"),
        ],
    )
    def test_wrong_settings(self, adapters, problem):
        with pytest.raises(UserError, match=problem):
            token_vit(adapters)

    def test_heads(self):
        with pytest.raises(UserError, match="has one output and no heads"):
            through(token_vit(), "acc")
        with pytest.raises(UserError, match="no such head.*did you mean 'acc'"):
            through(token_vit({"name": "tora"}), "ac")
        with pytest.raises(KeyError, match="ac"):
            token_vit({"name": "tora"})(torch.rand(1, 3, 8, 8), head="ac")


def test_settings_are_read_back():
    model = token_vit({"name": "tora", "softmax": "all", "bottleneck": 3})
    assert isinstance(model.settings, ModelSettings)
    assert model.settings.adapters.softmax == "all"
    assert repr(model.settings.build()) == repr(model)
    assert token_vit({"name": "tora"}).backbone.adapters[0].acc.down.out_features == 2

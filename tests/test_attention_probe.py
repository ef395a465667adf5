"""Laws of the attention probe, over the families of transformers."""

import copy
import pickle

import pytest
import timm
import torch
import torch.nn.functional as F
from torch import nn

from robustvit.core.errors import UserError
from robustvit.core.streams import seeded_globals
from robustvit.models.attention_factors import set_attention_factors
from robustvit.models.attention_probe import Scaling, ScoreObserver, attention_blocks, install, probing

FAMILIES = {
    "vit": ("vit_tiny_patch16_224", {"img_size": 32, "patch_size": 8, "depth": 3}, 3),
    "deit": ("deit_tiny_distilled_patch16_224", {"img_size": 32, "patch_size": 8, "depth": 2}, 2),
    "cait": ("cait_xxs24_224", {"img_size": 32, "patch_size": 8, "depth": 2, "init_values": 1.0}, 4),
    "xcit": ("xcit_nano_12_p16_224", {"img_size": 32, "depth": 2}, 4),
    "swin": ("swin_tiny_patch4_window7_224", {"img_size": 32, "patch_size": 2, "window_size": 4, "depths": (2, 2)}, 4),
    "levit": ("levit_128s", {"img_size": 32}, 11),
    "levit_conv": ("levit_conv_128s", {"img_size": 32}, 11),
}


def built(family: str, fused: bool = False) -> nn.Module:
    name, settings, _ = FAMILIES[family]
    with seeded_globals(family):
        model = timm.create_model(name, num_classes=10, **settings).eval().requires_grad_(False)
    for module in model.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = fused
    return model


@pytest.fixture
def x() -> torch.Tensor:
    return torch.rand(3, 3, 32, 32)


@pytest.fixture(params=[(family, fused) for family in FAMILIES for fused in (False, True)], ids=str)
def model(request) -> nn.Module:
    return built(*request.param)


def ones(model: nn.Module) -> torch.Tensor:
    return torch.ones(len(attention_blocks(model)))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_block_is_found(family):
    assert len(attention_blocks(built(family))) == FAMILIES[family][2]


def test_looking_changes_nothing_where_the_fused_bias_is_of_heads():
    torch.manual_seed(0)
    model = timm.create_model("tiny_vit_5m_224", num_classes=10).eval().requires_grad_(False)
    for name, parameter in model.named_parameters():
        if "attention_biases" in name:
            parameter.normal_()
    x = torch.rand(2, 3, 224, 224)
    seen = {}
    before = model(x)
    with probing(model, ScoreObserver(lambda block, scores, masked: seen.update({block: scores}))):
        torch.testing.assert_close(model(x), before, rtol=1e-4, atol=1e-5)
    assert len(seen) == len(attention_blocks(model))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("coat_tiny", "over axis 2 of 4"),
        ("convit_tiny", "2 softmaxes were caught"),
        ("skresnet18", "no attention block"),
    ],
)
def test_attention_of_another_kind_fails_loudly(name, message):
    model = timm.create_model(name, num_classes=10).eval()
    with pytest.raises(UserError, match=message), torch.no_grad(), probing(model, ScoreObserver(lambda *seen: None)):
        model(torch.rand(1, 3, 224, 224))


def test_factor_one_changes_no_bit_and_nothing_is_left_behind(model, x):
    names, before = list(model.state_dict()), model(x)
    with probing(model, Scaling(ones(model))):
        assert torch.equal(model(x), before)
        assert list(model.state_dict()) == names
    with probing(model, Scaling(0.1 * ones(model))):
        assert not torch.equal(model(x), before)
    assert torch.equal(model(x), before)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_each_factor_moves_its_own_block_and_gets_a_gradient(model, x):
    factors = (0.5 * ones(model)).requires_grad_()
    with probing(model, Scaling(factors)):
        (gradient,) = torch.autograd.grad(model(x)[:, 0].sum(), factors)
    assert torch.isfinite(gradient).all()
    if "Levit" not in type(model).__name__:  # untrained, its last layers are silent
        assert (gradient != 0).all()


def test_gradients_are_those_of_differences(x):
    model = built("cait").double()
    factors = torch.tensor([0.3, 0.6, 0.9, 0.5], dtype=torch.float64, requires_grad=True)

    def output(values):
        with probing(model, Scaling(values)):
            return model(x.double())[:, 0].sum()

    assert torch.autograd.gradcheck(output, factors)


@pytest.mark.parametrize("family", [family for family in FAMILIES if "levit" not in family])
def test_fused_attention_gives_what_unfused_gives(family, x):
    outputs = []
    for fused in (False, True):
        model = built(family, fused)
        with probing(model, Scaling(torch.linspace(0.1, 2, len(attention_blocks(model))))):
            outputs.append(model(x))
    torch.testing.assert_close(*outputs, rtol=1e-4, atol=1e-5)


def test_who_looks_sees_what_the_models_own_factors_made(x):
    model = timm.create_model("vit_tiny_patch16_224", num_classes=10, img_size=32, patch_size=8, depth=2).eval()
    plain, scaled = {}, {}

    def observing(into):
        return lambda block, scores: into.setdefault(block, scores)

    with torch.no_grad(), probing(model, observing(plain)):
        model(x)
    set_attention_factors(model, [0.5, 1.0])
    with torch.no_grad(), probing(model, observing(scaled)):
        model(x)
    assert torch.allclose(scaled[0], 0.5 * plain[0])
    assert not torch.allclose(scaled[1], plain[1])
    for bad in ([0.5], [0.5, -1.0], [0.5, float("nan")], ["a", "b"]):
        with pytest.raises(UserError, match="attention"):
            set_attention_factors(model, bad)


def test_arguments_by_name_are_understood():
    class KeywordAttention(nn.Module):
        fused = False

        def forward(self, x):
            if self.fused:
                return F.scaled_dot_product_attention(query=x, key=x, value=x)
            return torch.softmax(input=x @ x.mT / x.shape[-1] ** 0.5, dim=-1) @ x

    block = KeywordAttention()
    tokens = torch.rand(2, 4, 8, generator=torch.Generator().manual_seed(0))
    with probing(block, Scaling(torch.tensor([0.1]))):
        unfused = block(tokens)
        block.fused = True
        fused = block(tokens)
    assert torch.allclose(fused, unfused, atol=1e-6)
    assert not torch.allclose(fused, block(tokens), atol=1e-3)


def test_scaling_twice_is_scaling_by_the_product(model, x):
    factors = torch.linspace(0.25, 1, len(ones(model)))
    with probing(model, Scaling(factors)), probing(model, Scaling(factors)):
        twice = model(x)
    with probing(model, Scaling(factors.square())):
        torch.testing.assert_close(model(x), twice, rtol=1e-4, atol=1e-5)


def test_what_is_recorded_is_what_the_softmax_gets(model, x):
    before, seen = model(x), {}

    def record(block, scores):
        seen[block] = scores
        return scores

    with probing(model, record):
        torch.testing.assert_close(model(x), before, rtol=1e-4, atol=1e-5)
    assert sorted(seen) == list(range(len(ones(model))))
    assert all(scores.ndim >= 3 and torch.isfinite(scores).all() for scores in seen.values())


def test_a_mask_shuts_out_what_it_names(x):
    """Restricted to itself, no patch of a ViT learns of another: its token is what it is among any others."""
    for fused in (False, True):
        model = built("vit", fused)

        def alone(block, scores):
            return scores.masked_fill(~torch.eye(scores.shape[-1], dtype=torch.bool), -torch.inf)

        changed = x.clone()
        changed[:, :, :8, :8] = 0
        with probing(model, alone):
            tokens = [model.forward_features(image) for image in (x, changed)]
        assert torch.equal(tokens[0][:, 2:], tokens[1][:, 2:])
        assert not torch.equal(tokens[0][:, 1], tokens[1][:, 1])


@pytest.mark.parametrize("factor", [1.0, 0.01, 1e-7, 10.0])
@pytest.mark.parametrize("fused", [False, True])
def test_forbidden_pairs_stay_forbidden(factor, fused, x):
    model = built("swin", fused)
    masked = [module for module in model.modules() if getattr(module, "attn_mask", None) is not None]
    assert masked, "a shifted window among them"
    caught = []
    for block in masked:
        block.attn.attn_drop.register_forward_hook(lambda module, args, out: caught.append(args[0]))
    with probing(model, Scaling(factor * ones(model))):
        output = model(x)
    if fused:  # attention itself is out of sight there: the outputs are
        plain = built("swin", False)
        with probing(plain, Scaling(factor * ones(plain))):
            torch.testing.assert_close(plain(x), output, rtol=1e-4, atol=1e-5)
        return
    for block, attention in zip(masked, caught, strict=True):
        forbidden = block.attn_mask.repeat(len(x), 1, 1)[:, None].expand_as(attention) < 0
        assert attention[forbidden].max() < 1e-30
        assert forbidden.any()


def test_bfloat16_stays_bfloat16(x):
    model = built("vit", fused=True).bfloat16()
    before = model(x.bfloat16())
    with probing(model, Scaling(ones(model))):
        assert torch.equal(model(x.bfloat16()), before)


def test_gradient_checkpointing_gives_the_same_gradients(x):
    gradients = []
    for checkpointing in (False, True):
        model = built("vit")
        model.set_grad_checkpointing(checkpointing)
        factors = (0.5 * ones(model)).requires_grad_()
        with probing(model, Scaling(factors)):
            gradients.append(torch.autograd.grad(model(x)[:, 0].sum(), factors)[0])
    assert torch.equal(*gradients)


def test_copies_keep_what_is_installed(x):
    model = built("vit")
    install(model, [Scaling(0.1 * ones(model))])
    assert torch.equal(copy.deepcopy(model)(x), model(x))
    assert torch.equal(pickle.loads(pickle.dumps(model))(x), model(x))


class UnknownAttention(nn.Module):
    def forward(self, x):
        return x - torch.logsumexp(x, -1, keepdim=True)


class Stray(nn.Module):
    def __init__(self, vit):
        super().__init__()
        self.vit = vit

    def forward(self, x):
        return self.vit(x.softmax(-1))


def refused(model, *edits) -> str:
    with pytest.raises(UserError) as error, probing(model, *edits):
        model(torch.rand(1, 3, 32, 32))
    return str(error.value)


def test_what_cannot_be_reached_is_reported():
    one = Scaling(torch.ones(1))
    assert "UnknownAttention" in refused(nn.Sequential(nn.Flatten(), UnknownAttention()), one)
    assert "outside of every module" in refused(Stray(built("vit")), Scaling(torch.ones(3)))
    assert "where=logits" in refused(nn.Sequential(nn.Flatten(), nn.Linear(3072, 10)), one)
    assert "has 3 attention blocks, the factors are 1" in refused(built("vit"), one)
    assert "compiled" in refused(torch.compile(built("vit")), Scaling(torch.ones(3)))
    inside = built("vit")
    inside.blocks[0].attn.compile()
    assert "compiled" in refused(inside, Scaling(torch.ones(3)))
    traced = torch.jit.trace(built("vit"), torch.rand(1, 3, 32, 32))
    assert "scripted" in refused(traced, Scaling(torch.ones(3)))
    assert "MultiheadAttention" in refused(
        nn.Sequential(nn.Flatten(2), nn.TransformerEncoderLayer(1024, 2, 16, batch_first=True)).eval(), one
    )

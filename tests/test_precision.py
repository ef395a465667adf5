"""Precision, activation checkpointing and compilation: what they change, and what they must not."""

import copy
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from typer.testing import CliRunner

from conftest import tiny_vit, token_vit
from robustvit.attacks import PGD
from robustvit.attacks.low_precision import LowPrecision
from robustvit.cli.main import app
from robustvit.core.config import merge
from robustvit.core.errors import UserError
from robustvit.evaluation import evaluate, suite_from
from robustvit.models import create_model
from robustvit.models.precision import (
    autocasting,
    check_precision,
    checkpoint_activations,
    compile_network,
    compute_in,
    float32_modules,
    in_float32,
    keeping_float32,
    matrix_products,
    slower_by,
)
from robustvit.planning import plan
from robustvit.threats import LpBall
from robustvit.training import train
from robustvit.training.classify import Classify
from test_training import TINY

XCIT = {"patch_size": 4, "embed_dim": 32, "depth": 2, "num_heads": 2, "cls_attn_layers": 1}
MODELS = {
    "vit": lambda: tiny_vit(),
    "xcit": lambda: create_model("xcit_nano_12_p8_224", num_classes=10, **XCIT),
    "norms": lambda: create_model("wideresnet", num_classes=10, depth=10, width=1),
}


def made(name: str) -> nn.Module:
    torch.manual_seed(0)
    return MODELS[name]()


def images(name: str, count: int = 4) -> torch.Tensor:
    return torch.rand(count, 3, *((8, 8) if name == "vit" else (32, 32)), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", MODELS)
def test_activations_computed_again_give_the_same_gradients_and_statistics(name):
    plain = made(name).train()
    again = copy.deepcopy(plain)
    checkpoint_activations(again)
    again, kept = copy.deepcopy(again), {}  # copies, such as the average, keep it
    for which, model in (("plain", plain), ("again", again)):
        torch.manual_seed(2)
        kept[which] = 0

        def pack(tensor, which=which):
            kept[which] += tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            logits = model(images(name))
        logits.square().sum().backward()
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(plain.parameters(), again.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(plain.buffers(), again.buffers(), strict=True))
    assert kept["again"] < 0.6 * kept["plain"]
    assert repr(plain) == repr(again), "names of layers are part of a model's identity"


def explicit_attention() -> nn.Module:
    """Softmax as an operation of its own, as CaiT has it."""
    settings = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 1, "num_heads": 2, "depth_token_only": 1}
    return create_model("cait_xxs24_224", num_classes=10, mean=(0.5,), std=(0.5,), **settings)


def test_activations_are_computed_again_in_bf16_as_the_first_time():
    torch.manual_seed(0)
    plain = explicit_attention().eval()
    compute_in(plain, "bf16")
    again = copy.deepcopy(plain)
    checkpoint_activations(again)
    for model in (plain, again):
        model(images("cait")).square().sum().backward()
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(plain.parameters(), again.parameters(), strict=True))


@pytest.mark.parametrize("name", MODELS)
def test_bf16_keeps_stem_norms_and_logits_in_float32(name):
    model, seen = made(name).eval(), {}
    compute_in(model, "bf16")
    for path, module in model.named_modules():
        if not list(module.children()):
            module.register_forward_hook(lambda module, x, y, path=path: seen.update({path: (module, y.dtype)}))
    x = images(name)
    with torch.no_grad():
        low = model(x)
        with in_float32(model):
            full = model(x)
    assert low.dtype == torch.float32
    assert 0 < float((low - full).abs().max()) < 0.02 * float(full.max() - full.min())
    low = model(x)  # seen again
    kinds = {path: str(dtype).removeprefix("torch.") for path, (_, dtype) in seen.items()}
    norms = [p for p, (m, _) in seen.items() if isinstance(m, nn.LayerNorm | nn.modules.batchnorm._BatchNorm)]
    assert norms
    assert {kinds[path] for path in norms} == {"float32"}
    layers = [path for path, (module, _) in seen.items() if isinstance(module, nn.Linear | nn.Conv2d)]
    assert (kinds[layers[0]], kinds[layers[-1]]) == ("float32", "float32"), "stem and logits"
    assert "bfloat16" in {kinds[path] for path in layers}


def test_bf16_keeps_each_of_several_heads_in_float32():
    model = token_vit("tora")
    kept = float32_modules(model)
    assert all(head in kept for head in model.backbone.heads.values())
    assert model.backbone.adapters[0].fusion.query not in kept


def test_softmax_is_float32_on_a_cpu_too():
    x = torch.rand(2, 3).bfloat16()
    with autocasting("cpu"):
        made = torch.softmax(x, -1), F.softmax(x, -1), x.softmax(-1), x.softmax(dim=-1, dtype=torch.float64)
        assert torch.mm(x, x.T).dtype == torch.bfloat16
    assert [one.dtype for one in made] == [torch.float32] * 3 + [torch.float64]


@pytest.mark.parametrize("scale", [None, 0.3])
def test_fused_attention_is_taken_apart_in_bf16_on_a_cpu(scale):
    """Its own gradient in bfloat16 takes several times as long there."""
    q, k, v = (torch.randn(2, 3, 5, 4).bfloat16().requires_grad_() for _ in range(3))
    with autocasting("cpu"), torch.profiler.profile() as profile:
        made = F.scaled_dot_product_attention(q, k, value=v, dropout_p=0.0, scale=scale)
        made.float().square().sum().backward()
    assert not any("flash" in event.key for event in profile.key_averages())
    assert made.dtype == torch.bfloat16
    wide = [one.detach().float().requires_grad_() for one in (q, k, v)]
    full = F.scaled_dot_product_attention(*wide, scale=scale)
    full.square().sum().backward()
    torch.testing.assert_close(made.float(), full, atol=0.02, rtol=0.02)
    with autocasting("cpu"):
        dropped = F.scaled_dot_product_attention(q, k, v, dropout_p=1.0)
    assert not dropped.any()
    for one, other in zip((q, k, v), wide, strict=True):
        torch.testing.assert_close(one.grad.float(), other.grad, atol=0.05, rtol=0.05)


def test_attention_with_a_mask_is_float32_in_bf16_on_a_cpu():
    q, k, v = (torch.randn(2, 3, 5, 4).bfloat16() for _ in range(3))
    near = torch.randn(5, 5)
    wide = [one.float() for one in (q, k, v)]
    with autocasting("cpu"):
        made = [
            F.scaled_dot_product_attention(q, k, v, near.bfloat16()),
            F.scaled_dot_product_attention(q, k, v, attn_mask=near > 0, scale=0.3),
            F.scaled_dot_product_attention(q, k, v, is_causal=True),
        ]
    expected = [
        F.scaled_dot_product_attention(*wide, near.bfloat16().float()),
        F.scaled_dot_product_attention(*wide, near > 0, scale=0.3),
        F.scaled_dot_product_attention(*wide, is_causal=True),
    ]
    assert all(torch.equal(one, other) for one, other in zip(made, expected, strict=True))


def test_multihead_attention_is_float32_in_bf16_on_a_cpu():
    """Torch runs it as one function, whose parts no mode sees."""
    layer, x = nn.MultiheadAttention(8, 2, batch_first=True), torch.randn(2, 5, 8)
    with autocasting("cpu"):
        made, weights = layer(x.bfloat16(), x.bfloat16(), x.bfloat16())
    expected, expected_weights = layer(*3 * [x.bfloat16().float()])
    torch.testing.assert_close(made, expected, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(weights, expected_weights, atol=1e-6, rtol=1e-6)


def test_of_a_stem_with_blocks_the_first_layer_alone_stays_in_float32():
    model = create_model("stem_vit_32", num_classes=10)
    kept, stem = float32_modules(model), model.backbone.patch_embed
    assert stem.conv1 in kept
    assert not {stem, stem.conv2, stem.blocks[0].attn.qkv} & {*kept}


def test_within_a_search_classes_of_layers_are_changed_and_put_back():
    model = made("vit").eval()
    kinds = [type(module) for module in model.modules()]
    with keeping_float32(model):
        assert [type(module) for module in model.modules()] != kinds
    assert [type(module) for module in model.modules()] == kinds


def test_tf32_is_only_used_by_name():
    matmul, conv = torch.backends.cuda.matmul, torch.backends.cudnn.conv
    before = matmul.fp32_precision, conv.fp32_precision
    for precision, kind in (("float32", "ieee"), ("bf16", "ieee"), ("tf32", "tf32")):
        with matrix_products(precision):
            assert (matmul.fp32_precision, conv.fp32_precision) == (kind, kind)
    assert (matmul.fp32_precision, conv.fp32_precision) == before


def test_tf32_is_refused_where_it_would_be_float32(tmp_path, monkeypatch):
    with pytest.raises(UserError, match="recipe.precision: 'cpu' has no TF32 .* use float32 here"):
        train({**TINY, "precision": "tf32"}, tmp_path / "run", quiet=True)
    checked = CliRunner().invoke(app, ["check", "digits/trades", "-o", "precision=tf32"])
    assert (checked.exit_code, "'cpu' has no TF32" in checked.output) == (2, True)
    checked = CliRunner().invoke(app, ["check", "digits/trades", "-o", "batch_size=9", "-o", "accumulate=4"])
    assert (checked.exit_code, "can't be cut into 4 parts" in checked.output) == (2, True)
    assert not (tmp_path / "run").exists()
    for capability, is_refused in (((7, 5), True), ((8, 0), False)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, known=capability: known)
        with pytest.raises(UserError, match="'cuda:0' has no TF32") if is_refused else nullcontext():
            check_precision("tf32", "cuda:0")


def test_tf32_is_timed_too(monkeypatch):
    seen = []

    def seen_in(x: torch.Tensor) -> torch.Tensor:
        seen.append(torch.backends.cuda.matmul.fp32_precision)
        return x.sin()

    slower_by(seen_in, seen_in, torch.rand(2, 2), "tf32")
    assert seen == ["tf32", "tf32", "ieee", "ieee"]
    times = iter([0.0, 9.0, 9.0, 18.0, 20.0, 21.0, 21.0, 21.5])
    monkeypatch.setattr("robustvit.models.precision.time.perf_counter", lambda: next(times))
    assert slower_by(torch.sin, torch.sin, torch.rand(2, 2), "tf32").startswith("precision tf32: a pass takes 18")


def test_a_slower_precision_is_reported(monkeypatch):
    times = iter([0.0, 9.0, 9.0, 18.0, 20.0, 21.0, 21.0, 21.5])
    monkeypatch.setattr("robustvit.models.precision.time.perf_counter", lambda: next(times))
    assert "takes 18 times as long as in float32" in slower_by(torch.sin, torch.sin, torch.rand(2, 2))
    times = iter([0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0, 6.0])
    assert slower_by(torch.sin, torch.sin, torch.rand(2, 2)) == ""


def losses(run) -> list[float]:
    return [row["loss"] for row in run.metrics.repair() if row["kind"] == "train"]


def test_twenty_steps_in_bf16_are_close_to_float32(tmp_path):
    """Within 2 % of the loss, at each of 20 steps."""
    settings = merge(
        TINY, {"log_every": 1, "batch_size": 64, "validation": {"hold_out": 0}, "checkpoints": {"select": "last"}}
    )
    full = losses(train(settings, tmp_path / "full", quiet=True, max_steps=20))
    low = train(merge(settings, {"precision": "bf16"}), tmp_path / "low", quiet=True, max_steps=20)
    assert len(full) == 20
    assert losses(low) != full
    assert losses(low) == pytest.approx(full, rel=0.02)
    assert "precision: bf16" in low.recipe.read_text()
    again = merge(settings, {"activation_checkpointing": True})
    assert losses(train(again, tmp_path / "again", quiet=True, max_steps=3)) == full[:3]


def test_validation_of_a_training_in_bf16_is_float32(tmp_path, monkeypatch):
    seen = set()
    applied = Classify._validate

    def validate(task, held):
        layer = next(module for module in task.weights().modules() if isinstance(module, nn.Linear))
        with layer.register_forward_hook(lambda module, inputs, output: seen.add(output.dtype)):
            return applied(task, held)

    monkeypatch.setattr(Classify, "_validate", validate)
    settings = merge(TINY, {"precision": "bf16", "epochs": 1, "validation": {"hold_out": 16, "suite": "fgsm"}})
    train(settings, tmp_path, quiet=True)
    assert seen == {torch.float32}


def test_survivors_of_bf16_are_searched_again_in_float32(digits):
    model, (x, y) = made("vit").eval(), digits
    threat, plain = LpBall("inf", 0.03), suite_from("pgd-3")
    results = {
        name: evaluate(model, (x[:32], y[:32]), suite=suite, threat=threat, quiet=True, batch_size=32, checks=False)
        for name, suite in (("plain", plain), ("low", {"name": "bf16_first", "of": "pgd-3"}))
    }
    low = results["low"]
    assert low.title == "pgd-3 after bf16"
    assert [stage.name for stage in low.stages] == ["pgd-3 in bf16", "pgd-3"]
    assert not (low.is_robust & ~results["plain"].is_robust).any(), "what the suite fools alone is fooled"
    assert any("judged in float32" in note for note in low.notes)


def test_a_search_in_bf16_ends_inside_the_ball_and_differs(digits):
    model, (x, y) = made("vit").eval(), digits
    x, y, threat = x[:8], y[:8], LpBall("inf", 0.1)
    dtypes = []
    model.backbone.blocks[0].mlp.fc1.register_forward_hook(lambda module, args, out: dtypes.append(out.dtype))
    found = LowPrecision(inner=PGD(steps=3))(model, x, y, threat)
    assert set(dtypes) == {torch.bfloat16}
    assert threat.contains(x, found).all()
    assert found.dtype == torch.float32


@pytest.mark.parametrize(
    ("options", "problem"),
    [(["--precision", "fp16"], "--precision fp16: one of float32, bf16"),
     (["--precision", "bf16", "--suite", "clean"], "'clean' searches for nothing")],
)  # fmt: skip
def test_mistakes(options, problem):
    result = CliRunner().invoke(app, ["evaluate", "vit_tiny_patch16_224", "--data", "digits", "--eps", "0.1", *options])
    assert result.exit_code == 2
    assert problem in result.output


def test_a_plan_knows_checkpointed_activations():
    kept = {}
    for wanted in ("false", "true"):
        made = plan("digits/trades", [f"activation_checkpointing={wanted}"], images=1500, hardware=hardware())
        kept[wanted] = made.phases[0]
    assert kept["true"].memory["activations"] < 0.5 * kept["false"].memory["activations"]
    assert kept["true"].work.gradient > 1.3 * kept["false"].work.gradient, "a forward pass again"


def hardware():
    from robustvit.planning import Hardware

    return Hardware("device", 1, 1e12)


def test_what_probes_attention_refuses_a_compiled_network(tmp_path):
    events = [{"name": "attention_scaling", "every": 1, "search": {"batches": 1}}]
    with pytest.raises(UserError, match="compile: false"):
        train(merge(TINY, {"epochs": 2, "compile": True, "events": events}), tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_compiled_logits_and_gradients_are_those_of_the_network(precision):
    plain, x = made("vit").train(), images("vit")
    compute_in(plain, precision)
    compiled = copy.deepcopy(plain)
    compile_network(compiled)
    logits, other = plain(x), compiled(x)
    spread = float(logits.max() - logits.min())
    assert float((logits - other).abs().max()) < (1e-5 if precision == "float32" else 1e-2) * spread
    for made_logits in (logits, other):
        made_logits.square().sum().backward()
    for a, b in zip(plain.parameters(), compiled.parameters(), strict=True):
        assert torch.allclose(
            a.grad, b.grad, rtol=0, atol=(1e-4 if precision == "float32" else 3e-2) * float(a.grad.abs().max())
        )

"""Linear layers by oneDNN where that is faster: the same products, and rows that don't depend on their number."""

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from conftest import tiny_vit
from robustvit.evaluation import open_subject
from robustvit.models import create_model, linear
from robustvit.models.cost import model_cost
from robustvit.models.linear import FLOPS, SMALL, fast_linear, is_faster, speed_up_linear
from robustvit.models.precision import compute_in, in_float32

needs_onednn = pytest.mark.skipif(
    not (FLOPS and torch.backends.mkldnn.is_available()), reason="torch has no oneDNN here"
)
IN, OUT = 160, 192


@pytest.fixture(autouse=True)
def _faster(monkeypatch):
    """As on a processor of AMD."""
    monkeypatch.setattr(linear, "is_faster", lambda: bool(FLOPS) and torch.backends.mkldnn.is_available())


def layer(bias: bool = True) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(IN, OUT, bias=bias)


def rows(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, IN, generator=torch.Generator().manual_seed(1))


def watched(monkeypatch) -> list[tuple[int, ...]]:
    """Shapes of what oneDNN multiplies."""
    seen, product = [], linear._Product.forward

    def watch(x, weight, bias):
        seen.append(tuple(x.shape))
        return product(x, weight, bias)

    monkeypatch.setattr(linear._Product, "forward", staticmethod(watch))
    return seen


@needs_onednn
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(7,), (3, 5), (2, 3, 4)])
def test_values_and_first_and_second_gradients_are_those_of_torch_in_float64(shape, bias, monkeypatch):
    plain, x, seen = layer(bias), rows(*shape), watched(monkeypatch)
    found = []
    for dtype in (torch.float32, torch.float64):
        module, at = copy.deepcopy(plain).to(dtype), x.to(dtype).requires_grad_()
        with fast_linear(module):
            made = module(at)
            leaves = [at, *module.parameters()]
            first = torch.autograd.grad(made.sin().sum(), leaves, create_graph=True)
            second = torch.autograd.grad(sum(one.square().sum() for one in first), leaves)
        found.append([made, *first, *second])
    assert seen[0] == (*shape, IN)
    assert len(seen) > 5, "gradients go through oneDNN, too"
    for low, full in zip(*found, strict=True):
        assert low.dtype == torch.float32
        torch.testing.assert_close(low.double(), full, rtol=2e-5, atol=2e-5 * float(full.detach().abs().max()))


@needs_onednn
def test_rows_have_the_same_bits_however_many_there_are():
    """What the guarantee of outcomes that don't depend on the batch rests on."""
    module, x = layer(), rows(257)
    with fast_linear(module):
        whole = module(x)
        gradient = linear._Product.apply(whole, module.weight.t(), None)
        for count in (2, 3, 5, 8, 13, 16, 31, 64, 100, 256):
            assert torch.equal(module(x[:count]), whole[:count]), count
            assert torch.equal(linear._Product.apply(whole[:count], module.weight.t(), None), gradient[:count]), count


@needs_onednn
def test_other_layouts_are_multiplied_as_they_are():
    module, x = layer(), rows(6, 4)
    with fast_linear(module):
        for view in (x[:, 1], x.transpose(0, 1), x[:1].expand(6, 4, IN), x[..., ::2].repeat_interleave(2, -1)):
            torch.testing.assert_close(module(view), F.linear(view, module.weight, module.bias), rtol=1e-5, atol=1e-5)
            (of_weight,) = torch.autograd.grad(module(view).sum(), module.weight)
            torch.testing.assert_close(of_weight, view.flatten(0, -2).sum(0).expand(OUT, IN), rtol=1e-4, atol=1e-4)
        logits = module(x.requires_grad_())
        (gradient,) = torch.autograd.grad(logits.sum(), x)  # an expanded gradient
    torch.testing.assert_close(gradient, module.weight.sum(0).expand_as(x), rtol=1e-5, atol=1e-5)


@needs_onednn
@pytest.mark.parametrize("bias", [torch.randn(2 * OUT)[::2], torch.randn(OUT, 3)[:, 1], torch.randn(1).expand(OUT)])
def test_a_bias_with_strides_is_read_with_them(bias):
    module, x = layer(), rows(4)
    module.bias = nn.Parameter(bias)
    with fast_linear(module):
        torch.testing.assert_close(module(x), F.linear(x, module.weight, bias), rtol=1e-5, atol=1e-5)


@needs_onednn
def test_functional_transforms_and_forward_derivatives_work_as_in_torch():
    module, x = layer(), rows(4)

    def loss(x):
        return module(x).sin().sum()

    def transformed():
        logits = module(at := x.clone().requires_grad_())
        directions = torch.eye(4)[:, :, None].expand(4, 4, OUT)
        return [
            torch.func.vmap(torch.func.grad(lambda row: loss(row[None])))(x),
            torch.func.jvp(loss, (x,), (torch.ones_like(x),))[1],
            torch.autograd.grad(logits, at, directions, retain_graph=True, is_grads_batched=True)[0],
            torch.autograd.grad(logits.sum(), module.weight)[0],
        ]

    expected = transformed()
    with fast_linear(module):
        found = transformed()
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
            found[1] = torch.autograd.forward_ad.unpack_dual(loss(dual)).tangent
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@needs_onednn
def test_scripted_traced_and_compiled_layers_are_torchs(monkeypatch):
    scripted, seen = torch.jit.script(nn.Sequential(layer())), watched(monkeypatch)
    with fast_linear(nn.Sequential(scripted)):
        scripted(rows(4))
    module = layer()
    with fast_linear(module):
        traced = torch.jit.trace(module, rows(4), check_trace=False)
        compiled = torch.compile(module, backend="eager", fullgraph=True)
        compiled(rows(4))
    assert seen == []
    assert "aten::linear" in str(traced.inlined_graph)


@needs_onednn
def test_images_of_another_size_are_refused_in_the_words_of_torch():
    with fast_linear(module := layer()), pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        module(torch.rand(4, IN + 1))


@needs_onednn
def test_what_is_frozen_keeps_no_activations():
    module, x, kept = layer(), rows(8).requires_grad_(), []
    module.requires_grad_(False)
    with (
        fast_linear(module),
        torch.autograd.graph.saved_tensors_hooks(lambda one: kept.append(one) or one, lambda one: one),
    ):
        module(x)
    assert [tuple(one.shape) for one in kept] == [(OUT, IN)]


@needs_onednn
def test_what_onednn_does_not_speed_up_is_left_to_torch(monkeypatch):
    seen, module, small = watched(monkeypatch), layer(), nn.Linear(SMALL // 16, 16)
    with fast_linear(nn.ModuleList([module, small])):
        small(torch.randn(4, SMALL // 16))
        module(rows(4)[0])  # a vector
        module(rows(0))
        with torch.autocast("cpu", torch.bfloat16):
            assert module(rows(4)).dtype == torch.bfloat16
        copy.deepcopy(module).double()(rows(4).double())
        copy.deepcopy(module).to("meta")(rows(4).to("meta"))
        copy.deepcopy(module).requires_grad_(False)(rows(4).to_sparse())
        other, kind = copy.deepcopy(module), type("Own", (torch.Tensor,), {})
        other.weight = nn.Parameter(other.weight.detach().as_subclass(kind))
        other(rows(4))
        other.weight = nn.Parameter(rows(1).expand(OUT, IN))
        other(rows(4))
        assert seen == []
        module(rows(4))
    assert seen == [(4, IN)]
    module(rows(4))
    assert len(seen) == 1, "only within"


@needs_onednn
def test_a_subject_has_fast_layers_while_it_is_ready_and_looks_the_same(monkeypatch):
    seen, model = watched(monkeypatch), tiny_vit(embed_dim=96)
    kinds, described = [type(one) for one in model.modules()], repr(model)
    x, y = torch.rand(4, 3, 8, 8), torch.zeros(4, dtype=torch.long)
    subject = open_subject(model, (x, y))
    with subject.ready() as ready:
        inside = len(seen)
        fingerprint = ready.fingerprint()
        ready(x)
        assert len(seen) > inside
        assert repr(model) == described
    assert [type(one) for one in model.modules()] == kinds
    monkeypatch.setattr(linear, "is_faster", lambda: False)
    with subject.ready() as plain:
        count = len(seen)
        plain(x)
        assert len(seen) == count
        assert plain.fingerprint() == fingerprint


@needs_onednn
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_a_training_keeps_fast_layers_in_copies_and_in_its_passes_of_float32(precision, monkeypatch):
    seen, model = watched(monkeypatch), tiny_vit(embed_dim=96)
    compute_in(model, precision)
    average = pickle.loads(pickle.dumps(model))
    assert [type(one).__mro__ for one in average.modules()] == [type(one).__mro__ for one in model.modules()]
    average(torch.rand(2, 3, 8, 8))
    assert bool(seen) == (precision == "float32")
    with in_float32(average):
        average(torch.rand(2, 3, 8, 8))
    assert seen


def test_a_sharded_training_leaves_them_to_torch(monkeypatch):
    """A search can't freeze its weights, whose gradients would be computed in vain."""
    seen, model = watched(monkeypatch), tiny_vit(embed_dim=96)
    compute_in(model, "float32", shard=True)
    model(torch.rand(2, 3, 8, 8))
    assert seen == []


@needs_onednn
def test_multiply_adds_are_counted_the_same():
    model = create_model("vit_tiny_patch16_224", num_classes=10, img_size=32, patch_size=8, embed_dim=192, depth=1)
    plain = model_cost(model, 32)
    speed_up_linear(model)
    assert model_cost(model, 32) == plain


@pytest.mark.parametrize(
    ("name", "capability", "expected"),
    [
        ("AMD EPYC 9B45", "AVX512", True),
        ("AMD EPYC 7B13", "AVX2", False),
        ("Intel(R) Xeon(R)", "AVX512", False),
        ("AMD64", "AVX512", False),
    ],
)
def test_the_choice_follows_from_the_processor(name, capability, expected, monkeypatch):
    if not (FLOPS and torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()):
        pytest.skip("torch has no MKL or no oneDNN here")
    monkeypatch.setattr(linear, "processor", lambda: name)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    assert is_faster.__wrapped__() is expected

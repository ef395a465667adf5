"""Masked gradients, planted in many ways: checks before an evaluation name them, and don't name healthy twins."""

import copy
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import robustvit as rv
from conftest import linear_digits, tiny_vit
from masking import warned_before
from planted import KINDS, REFUSED, TWINS, hooked, nearly_one_hot, sharper_attention
from robustvit.core.streams import sample_streams
from robustvit.evaluation import probes
from robustvit.evaluation.attention_rows import one_hot_rows
from robustvit.evaluation.probes import PROBES, Probe, Probed, compared_slopes, probe_warnings
from robustvit.evaluation.subject import open_subject
from robustvit.models import create_model
from robustvit.models.precision import matrix_products

THREAT = rv.LpBall("inf", 0.1)
BEFORE = [name for name, kind in KINDS.items() if kind.is_seen_before and kind.outcome != REFUSED and kind.fits("ViT")]


def probed(model, digits, images=64, threat=THREAT, is_random=False):
    x, y = digits[0][:images], digits[1][:images]
    subject = open_subject(model, (x, y), seed=0)
    with torch.no_grad():
        return Probed(subject, threat, x, y, model(x), is_random)


def fraction(name, seen):
    (probe,) = (one for one in PROBES if one.name == name)
    measured = probe.measure(seen)
    return None if measured is None else measured[0]


@pytest.mark.parametrize("name", BEFORE)
def test_planted_masking_is_caught_before_an_evaluation(name, trained_vit):
    kind = KINDS[name]
    assert kind.outcome in warned_before(kind.plant(trained_vit), "digits", THREAT)


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if kind.outcome == REFUSED])
def test_what_has_no_gradient_is_refused(name, trained_vit):
    assert warned_before(KINDS[name].plant(trained_vit), "digits", THREAT) == [REFUSED]


@pytest.mark.parametrize("name", TWINS)
def test_healthy_twins_are_not_warned_of(name, trained_vit):
    assert warned_before(TWINS[name](trained_vit), "digits", THREAT) == []


@pytest.mark.parametrize("threat", [rv.LpBall("2", 1), rv.LpBall("1", 5), rv.LpBall("inf", 0), rv.LpBall("inf", 0.5)])
def test_healthy_models_are_not_warned_of_under_other_threats(threat, trained_vit, trained, digits):
    for model in (trained_vit, trained, linear_digits()):
        assert list(probe_warnings(probed(model, digits, threat=threat))) == []


@pytest.fixture(scope="module")
def convolutions(digits) -> nn.Module:
    """A small network with ReLU, batch norm, max pooling and a residual branch, trained on half of the test images."""

    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Conv2d(3, 16, 3, padding=1)
            self.branch = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
            self.head = nn.Linear(256, 10)

        def forward(self, x):
            x = self.stem(x).relu()
            return self.head(nn.functional.max_pool2d(x + self.branch(x), 2).flatten(1))

    model, (x, y) = Residual().train(), digits
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(30):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[::2]), y[::2]).backward()
        optimizer.step()
    return model.eval()


def test_slopes_of_a_relu_network(convolutions, digits):
    assert fraction("wrong-gradients", probed(convolutions, digits)) == 0
    detached = hooked("branch", lambda x, out: out.detach())(convolutions)
    assert fraction("wrong-gradients", probed(detached, digits)) > 0.5
    assert fraction("one-hot-attention", probed(convolutions, digits)) is None


def test_slopes_are_not_looked_for_where_they_mean_nothing(trained, digits):
    noisy = probed(trained, digits, is_random=True)
    assert fraction("wrong-gradients", noisy) is None
    assert fraction("wrong-gradients", probed(trained, digits, images=7)) is None, "too few images"

    flat = probed(lambda x: 100 + 1e-4 * trained(x), digits)
    assert fraction("wrong-gradients", flat) is None, "lost to rounding"


class Misled(torch.autograd.Function):
    """A linear classifier of two classes whose gradient is so many times as large as it should be."""

    @staticmethod
    def forward(context, x, weight, factor):
        context.weight, context.factor, context.shape = weight, factor, x.shape
        score = x.flatten(1) @ weight
        return torch.stack([score, -score], 1) / 2

    @staticmethod
    def backward(context, gradient):
        along = (gradient[:, :1] - gradient[:, 1:]) / 2 * context.weight * context.factor
        return along.view(context.shape), None, None


@pytest.mark.parametrize("factor", [0.5, 0.78, 0.82, 1.0, 1.18, 1.22, 3.0, -1.0])
def test_gradients_are_wrong_from_a_fifth_of_the_slope_on(factor, digits):
    """Of the slope or of the gradient's length, whichever is larger: one direction may hardly rise by chance."""
    weight = torch.linspace(-0.3, 1, 192)
    x, y = digits[0][:20], (digits[0][:20].flatten(1) @ weight < 0).long()
    seen = Probed(open_subject(lambda x: x, (x, y), seed=5), THREAT, x, y, x, False)
    seen = replace(seen, subject=replace(seen.subject, model=lambda x: Misled.apply(x, weight, factor)))
    streams = sample_streams(5, range(20)).child("slope")
    direction = (streams.uniform((3, 8, 8), at="direction") - 0.5).sign().flatten(1)
    slope, length = (direction @ weight).abs(), abs(factor) * weight.norm()
    expected = abs(1 - factor) * slope > 0.2 * torch.maximum(slope, length.expand(20))
    known, wrong = compared_slopes(seen)
    assert known.all()
    assert torch.equal(wrong, expected)
    assert bool(expected.any()) == (not 0.8 < factor < 1.2)


@pytest.mark.parametrize(("misleading", "are_wrong"), [((), False), ((3,), False), ((5,), False), ((3, 5), True)])
def test_a_slope_is_wrong_if_both_steps_say_so(misleading, are_wrong, trained, digits):
    """Of six passes, the first two give gradients, the others lie ahead and behind by the larger and smaller step."""
    points = []

    def model(x):
        points.append(x.detach())
        lifted = len(points) in misleading
        return trained(x) + lifted * 5 * nn.functional.one_hot(trained(x).argmax(1), 10)

    seen = probed(trained, digits)
    known, wrong = compared_slopes(replace(seen, subject=replace(seen.subject, model=model)))
    assert len(points) == 6
    assert known.sum() == 32
    assert bool((wrong == are_wrong).all())
    for number, step in ((2, 1 / 510), (3, -1 / 510), (4, 1 / 2040), (5, -1 / 2040)):
        assert torch.allclose((points[number] - points[1]).abs(), torch.full_like(points[1], abs(step)), atol=1e-6)
        assert torch.allclose((points[number] - points[1]) / step, (points[2] - points[1]) * 510, atol=1e-3)


@pytest.mark.parametrize("threat", [THREAT, rv.LpBall("2", 1)], ids=str)
def test_slopes_are_measured_where_attacks_begin_and_a_step_later(threat, trained, digits):
    points = []

    def model(x):
        points.append(x.detach())
        return trained(x)

    seen = probed(trained, digits, threat=threat)
    compared_slopes(replace(seen, subject=replace(seen.subject, model=model)))
    x, far = digits[0][:32], 1 / 510
    start = threat.random_start(x, sample_streams(0, range(32)).child("slope"))
    assert torch.equal(points[0], start)
    assert torch.equal(points[1][::2], start[::2].clamp(far, 1 - far)), "where attacks begin"
    step = threat.project(x, start - threat.eps * threat.steepest(lead_gradient(trained, start)))
    assert torch.allclose(points[1][1::2], step[1::2].clamp(far, 1 - far)), "a step across the ball"


def lead_gradient(model, x):
    x = x.clone().requires_grad_()
    first, second = model(x).topk(2, 1).values.unbind(1)
    return torch.autograd.grad((first - second).sum(), x)[0]


@pytest.mark.parametrize(("size", "known"), [(8, True), (7, False)])
def test_slopes_need_eight_images_that_tell(size, known, trained, digits):
    assert (fraction("wrong-gradients", probed(trained, digits, images=size)) == 0) == known


def test_slopes_stay_inside_the_pixels(trained, digits):
    def strict(x):
        assert x.min() >= 0
        assert x.max() <= 1
        return trained(x.clamp(0, 1))

    assert fraction("wrong-gradients", probed(strict, digits)) == 0


def test_slopes_are_measured_without_tf32(trained, digits):
    seen, backends = [], torch.backends

    def looking(x):
        seen.append((backends.cudnn.conv.fp32_precision, backends.cuda.matmul.fp32_precision))
        return trained(x)

    sample = probed(looking, digits)
    before = seen.pop()
    assert before != ("ieee", "ieee")
    fraction("wrong-gradients", sample)
    assert set(seen) == {("ieee", "ieee")}
    assert (backends.cudnn.conv.fp32_precision, backends.cuda.matmul.fp32_precision) == before


def test_tf32_has_other_settings_in_an_older_torch():
    cudnn, matmul = SimpleNamespace(allow_tf32=True), SimpleNamespace(allow_tf32=True)
    with matrix_products(backends=SimpleNamespace(cudnn=cudnn, cuda=SimpleNamespace(matmul=matmul))):
        assert not cudnn.allow_tf32
        assert not matmul.allow_tf32
    assert cudnn.allow_tf32
    assert matmul.allow_tf32


SMALL = {
    "xcit_nano_12_p8_224": {
        "patch_size": 2, "embed_dim": 16, "depth": 1, "num_heads": 2, "cls_attn_layers": 1,
    },
    "swin_tiny_patch4_window7_224": {
        "patch_size": 1, "window_size": 4, "embed_dim": 16, "depths": (2,), "num_heads": (2,),
    },
}  # fmt: skip


@pytest.mark.parametrize("name", SMALL)
def test_attention_rows_of_other_families(name, digits):
    model = create_model(name, num_classes=10, img_size=8, mean=(0.3,), std=(0.38,), **SMALL[name]).eval()
    assert fraction("one-hot-attention", probed(model, digits)) == 0
    assert fraction("one-hot-attention", probed(sharper_attention(1e5)(model), digits)) > 0.9


def test_attention_rows_are_counted(trained_vit, digits):
    """Against the weights themselves, of a block without fused attention."""
    model, x = sharper_attention(30)(trained_vit), digits[0][:16]
    plain, weights = copy.deepcopy(model), []
    for block in (module for name, module in plain.named_modules() if name.endswith(".attn")):
        block.fused_attn = False
        block.attn_drop.register_forward_hook(lambda module, args, output: weights.append(args[0]))
    with torch.no_grad():
        plain(x)
    expected = float(torch.stack([one.amax(-1) > 0.999 for one in weights]).float().mean())
    assert 0.05 < expected < 0.95
    assert one_hot_rows(model, x) == pytest.approx(expected, abs=1e-3)


class LoneAttention(nn.Module):
    """One key for each query: its weight is 1 in every healthy model."""

    def forward(self, x):
        return x * torch.softmax(x.sum(1, keepdim=True)[..., None], -1).squeeze(-1)


def test_attention_that_cannot_be_seen_is_no_sign(trained, digits):
    lone = nn.Sequential(trained, LoneAttention())
    assert fraction("one-hot-attention", probed(lone, digits)) is None
    assert fraction("one-hot-attention", probed(lambda x: tiny_vit()(x), digits)) is None, "not a module"
    stray = nn.Sequential(tiny_vit(), nn.Softmax(1))
    assert fraction("one-hot-attention", probed(stray, digits)) is None, "a softmax outside of attention"


def test_margins(trained, digits):
    assert fraction("equal-margins", probed(trained, digits)) < 0.2
    assert fraction("equal-margins", probed(lambda x: nearly_one_hot(trained(x)), digits)) > 0.9
    assert fraction("equal-margins", probed(lambda x: trained(x)[:1].expand(len(x), -1), digits)) is None, "constant"
    assert fraction("equal-margins", probed(trained, digits, images=7)) is None, "too few images"
    missing = probed(lambda x: trained(x).index_fill(0, torch.arange(60), torch.nan), digits)
    assert fraction("equal-margins", missing) is None, "only four have logits"


@pytest.mark.parametrize(
    ("margins", "equal"),
    [
        ([1.0] * 8, 1.0),
        ([1.0] * 7, None),
        ([1.0] * 5 + [1.009, 0.991, 1.011, 0.989, 3.0], 0.7),
        ([100.0] * 5 + [100.9, 99.1, 101.1, 98.9, 3.0], 0.7),
        ([1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0], 1 / 9),
    ],
)
def test_margins_are_equal_within_a_hundredth_of_their_median(margins, equal, trained, digits):
    rows = torch.arange(len(margins))
    logits = torch.zeros(len(margins), 10, dtype=torch.float64)
    logits[rows, rows % 10] = torch.tensor(margins, dtype=torch.float64)
    found = fraction("equal-margins", replace(probed(trained, digits), logits=logits))
    assert found == (equal if equal is None else pytest.approx(equal))


@pytest.mark.parametrize(
    ("name", "limit"), [("one-hot-attention", 0.25), ("wrong-gradients", 0.15), ("equal-margins", 0.5)]
)
def test_warnings_begin_above_the_limit_of_their_probe(name, limit, trained, digits, monkeypatch):
    for value, expected in ((None, []), (limit, []), (limit + 0.01, [name])):
        patched = [replace(one, measure=lambda _: None) for one in PROBES if one.name != name]
        (own,) = (one for one in PROBES if one.name == name)
        measured = value if value is None else (value, "seen")
        monkeypatch.setattr(probes, "PROBES", (*patched, replace(own, measure=lambda _, found=measured: found)))
        begun = []
        warnings = list(probe_warnings(probed(trained, digits), begun.append))
        assert [warning.name for warning in warnings] == expected
        assert all(warning.inflates for warning in warnings)
        assert sorted(begun) == sorted(one.name for one in PROBES)


def test_nothing_is_warned_of_where_nothing_follows_gradients(trained_vit):
    assert warned_before(sharper_attention(100)(trained_vit), "digits", THREAT, "square") == []


def test_a_further_probe_is_a_function_and_a_line(trained, digits, monkeypatch):
    def bright(seen):
        return float(seen.x.mean()), "the images are bright"

    monkeypatch.setattr(probes, "PROBES", (*PROBES, Probe("bright", bright, 0.1, "dim them")))
    (warning,) = probe_warnings(probed(trained, digits))
    assert (warning.name, warning.observation, warning.advice) == ("bright", "the images are bright", "dim them")


def test_probes_take_few_passes_over_few_images(trained_vit, digits):
    sizes = []

    class Counted(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = trained_vit

        def forward(self, x):
            sizes.append(len(x))
            return self.model(x)

    sample = probed(Counted().eval(), digits)
    sizes.clear()
    list(probe_warnings(sample))
    assert max(sizes) <= 32
    assert sum(sizes) <= 16 + 6 * 32


@pytest.mark.parametrize(("side", "shrink"), [(8, 1), (32, 1), (64, 2), (224, 7)])
def test_steps_of_larger_images_are_as_long_in_l2(side, shrink):
    steps = probes.slope_steps(torch.zeros(1, 3, side, side))
    assert steps == pytest.approx([step / shrink for step in probes.SLOPE_STEPS])

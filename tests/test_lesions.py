"""Networks without some of their parts: laws over the families, and the analysis that is made of them."""

import itertools

import numpy as np
import pytest
import timm
import torch
from torch import nn

import robustvit as rv
from conftest import tiny_vit
from robustvit.analysis import LesionStudy, analyze
from robustvit.core.errors import UserError
from robustvit.models import Normalized
from robustvit.models.lesions import ATTENTION, BLOCK, MLP, Lesion, removable
from test_attention_probe import built

X = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
PARTED = ("vit", "deit", "swin", "cait", "xcit")
OPTIONS = {"images": 40, "quiet": True}


def hooks(model):
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


@pytest.mark.parametrize("family", PARTED)
def test_without_all_its_parts_a_block_is_the_identity(family):
    model = built(family)
    before = model(X)
    blocks = [block for block in removable(model, X[:2]) if block.parts]
    assert blocks
    with Lesion()(model):
        assert torch.equal(model(X), before)
    for block in blocks:
        with Lesion(parts=tuple(name for _, name in block.parts))(model):
            by_parts = model(X)
        with Lesion(blocks=((block.name, block.argument),))(model):
            assert torch.equal(model(X), by_parts)
        assert not torch.equal(by_parts, before)
    assert torch.equal(model(X), before)


def test_what_a_family_allows_is_found_by_running_it():
    kinds = {family: removable(built(family), X[:2]) for family in PARTED}
    for family in ("vit", "deit", "swin"):
        assert all(dict(block.parts).keys() == {ATTENTION, MLP} for block in kinds[family])
    assert [bool(block.parts) for block in kinds["cait"]] == [True, True, False, False]  # of the class token
    assert dict(kinds["xcit"][0].parts).keys() == {ATTENTION, MLP, "local_mp"}
    with torch.device("cpu"):
        model = timm.create_model(
            "swinv2_tiny_window8_256", num_classes=10, img_size=32, patch_size=2, window_size=4, depths=(1, 1)
        ).eval()
    assert all(block.parts for block in removable(model, X[:2]))
    for name, parameter in model.named_parameters():
        if "norm1.bias" in name:  # as training makes it: the norm comes after the part, and adds this
            torch.nn.init.ones_(parameter)
    assert all(not block.parts and block.argument == 0 for block in removable(model, X[:2]))
    resnet = removable(timm.create_model("resnet18", num_classes=10).eval(), X[:2])
    assert [block.argument for block in resnet] == [0, 0, None, 0, None, 0, None, 0]  # others change the shape


def test_a_block_left_out_of_a_resnet_is_its_input():
    model = timm.create_model("resnet18", num_classes=10).eval()
    with Lesion(blocks=(("layer1.1", 0),))(model):
        without = model(X)
    model.layer1 = torch.nn.Sequential(model.layer1[0])
    assert torch.equal(model(X), without)


def test_heads_are_told_apart():
    model = built("vit")
    block = removable(model, X[:2])[1]
    attention = block.part(ATTENTION)
    assert block.heads == 3
    before = model(X)
    with Lesion(heads=((attention, 1),))(model):
        one = model(X)
    assert not torch.equal(one, before)
    projection = model.get_submodule(attention).proj
    kept = projection.weight.clone()
    projection.weight[:, 64:128] = 0  # what the second of three heads of 64 is multiplied by
    assert torch.allclose(model(X), one, atol=1e-6)
    projection.weight.copy_(kept)
    with Lesion(heads=tuple((attention, head) for head in range(3)))(model):
        none = model(X)
    module = model.get_submodule(attention)
    torch.nn.init.zeros_(module.proj.weight)
    assert torch.allclose(model(X), none, atol=1e-6)


def test_the_network_is_as_before_after_an_error():
    model = built("vit")
    state, count = list(model.state_dict()), hooks(model)
    block = removable(model, X[:2])[0]
    lesion = Lesion((block.part(MLP),), (("blocks.1", 0),), ((block.part(ATTENTION), 0),))
    with pytest.raises(ZeroDivisionError), lesion(model):
        assert list(model.state_dict()) != state
        1 / 0  # noqa: B018
    assert list(model.state_dict()) == state
    assert hooks(model) == count


def accuracies(model, x, y, lesions):
    found = []
    for lesion in lesions:
        with lesion(model), torch.no_grad():
            found.append(float((model(x).argmax(1) == y).float().mean()))
    return found


def test_the_study_is_accuracy_without_each_part(trained_vit, tmp_path):
    what = LesionStudy(heads=True)
    (finding,) = analyze(trained_vit, "digits", what=what, run=tmp_path, **OPTIONS)
    x, y = rv.load_data("digits", 40)
    names = [f"backbone.blocks.{number}" for number in range(2)]
    chart = finding.charts[0]
    by_name = {line.name: line.ys for line in chart.lines}
    for kind, child in ((ATTENTION, "attn"), (MLP, "mlp")):
        expected = accuracies(trained_vit, x, y, [Lesion((f"{name}.{child}",)) for name in names])
        assert by_name[f"no {kind}"][1:] == pytest.approx(expected)
    blocks = [Lesion(blocks=((name, 0),)) for name in names]
    assert by_name["no block"][1:] == pytest.approx(accuracies(trained_vit, x, y, blocks))
    whole = float((trained_vit(x).argmax(1) == y).float().mean())
    assert {line.name: line.ys[0] for line in chart.lines} == pytest.approx(dict.fromkeys(by_name, whole))
    heads = [[Lesion(heads=((f"{name}.attn", head),)) for head in range(2)] for name in names]
    expected = np.array([accuracies(trained_vit, x, y, row) for row in heads])
    np.testing.assert_allclose(finding.charts[2].values, expected, atol=1e-6)
    random = {line.name: line for line in finding.charts[1].lines}["no mlp"]
    assert random.xs == (0.0, 1.0)  # the first block is kept
    assert random.ys[1] == pytest.approx(by_name["no mlp"][2])


def test_draws_are_means_with_their_error_and_range():
    model = tiny_vit_of(5)
    torch.nn.init.normal_(model.backbone.head.weight)
    what = LesionStudy(parts=(MLP,), draws=4, counts=(1, 2, 4))
    (finding,) = analyze(model, "digits", what=what, **OPTIONS)
    drawn = finding.arrays["at-random-mlp"]
    assert drawn.shape == (3, 4)
    assert np.isnan(drawn).sum() == 3  # of four blocks there is one choice of four
    (line,) = finding.charts[1].lines
    assert line.xs == (0.0, 1.0, 2.0, 4.0)
    mean, error = drawn[1].mean(), drawn[1].std(ddof=1) / 2
    assert line.ys[2] == pytest.approx(mean)
    assert line.intervals[2] == pytest.approx((mean - error, mean + error))
    assert line.ranges[2] == pytest.approx((drawn[1].min(), drawn[1].max()))
    single = finding.charts[0].lines[0].ys
    assert sorted(drawn[0]) == pytest.approx(sorted(single[2:]))  # all choices of one


def tiny_vit_of(depth):
    from robustvit.core.streams import seeded_globals
    from robustvit.models import create_model

    with seeded_globals("lesions"):
        return create_model(
            "vit_tiny_patch16_224", num_classes=10, img_size=8, patch_size=2, mean=(0.3,), std=(0.4,), embed_dim=16,
            depth=depth, num_heads=2,
        ).eval()  # fmt: skip


def test_a_kill_between_two_lesions_loses_none(tmp_path, monkeypatch):
    model = tiny_vit_of(3)
    torch.nn.init.normal_(model.backbone.head.weight)
    what = LesionStudy(draws=2)
    (whole,) = analyze(model, "digits", what=what, run=tmp_path / "a", **OPTIONS)
    calls, enter = itertools.count(), Lesion.__call__

    def dies(lesion, of):
        if next(calls) == 6:
            raise KeyboardInterrupt
        return enter(lesion, of)

    with monkeypatch.context() as patch:
        patch.setattr(Lesion, "__call__", dies)
        with pytest.raises(KeyboardInterrupt):
            analyze(model, "digits", what=what, run=tmp_path / "b", **OPTIONS)
    (ledger,) = tmp_path.glob("b/analysis/*/eval/*/ledger-*.jsonl")
    before = ledger.read_text()
    assert before
    (again,) = analyze(model, "digits", what=what, run=tmp_path / "b", **OPTIONS)
    assert (again.charts, again.tables) == (whole.charts, whole.tables)
    assert ledger.read_text().startswith(before)  # nothing was computed twice
    lines = ledger.read_text().splitlines()
    assert len(lines) == len(set(lines)) > len(before.splitlines())


def test_on_adversarial_images_of_the_whole_network(trained_vit):
    threat = rv.LpBall("inf", 0.1)
    what = LesionStudy(parts=(BLOCK,), draws=0)
    (finding,) = analyze(trained_vit, "digits", what=what, on=["clean", "pgd-5"], threat=threat, **OPTIONS)
    lines = {line.name: line for line in finding.charts[0].lines}
    attacked = rv.evaluate(trained_vit, "digits", suite="pgd-5", threat=threat, **OPTIONS)
    assert lines["pgd-5"].ys[0] == pytest.approx(attacked.robust_accuracy)
    assert lines["clean"].ys[0] == pytest.approx(attacked.clean_accuracy)


class OwnTransformer(nn.Module):
    """Made of torch's own layers, whose encoder looks at the attributes of the first."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True, norm_first=True)
        self.embed, self.encoder = nn.Conv2d(3, 16, 4, 4), nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        return self.head(self.encoder(self.embed(x).flatten(2).mT).mean(1))


def test_layers_of_torch_can_be_left_out():
    model, (x, _) = OwnTransformer().eval(), rv.load_data("digits", 6)
    tokens = model.embed(x).flatten(2).mT
    expected = model.head(model.encoder.layers[2](model.encoder.layers[1](tokens)).mean(1))
    with Lesion(blocks=(("encoder.layers.0", 0),))(model):
        torch.testing.assert_close(model(x), expected)
    (finding,) = analyze(model, "digits", what=LesionStudy(draws=0), **OPTIONS)
    assert len(finding.tables[0].rows) == 4


def test_what_cannot_be_left_out_is_one_sentence(trained):
    with pytest.raises(UserError, match="Block or Bottleneck"):
        analyze(trained, "digits", what="lesion", **OPTIONS)
    with pytest.raises(UserError, match="no block has a part 'gate'"):
        analyze(tiny_vit(), "digits", what=LesionStudy(parts=("gate",)), **OPTIONS)
    with pytest.raises(UserError, match="lesion.counts: at most 1"):
        analyze(tiny_vit(), "digits", what=LesionStudy(counts=(1, 2)), **OPTIONS)
    resnet = Normalized(timm.create_model("resnet18", num_classes=10), (0.0,), (1.0,)).eval()
    refused = (({"parts": (ATTENTION,)}, "no block has attention"), ({"heads": True}, "heads of attention"))
    for settings, message in refused:
        with pytest.raises(UserError, match=message):
            analyze(resnet, "digits", what=LesionStudy(**settings), **OPTIONS)

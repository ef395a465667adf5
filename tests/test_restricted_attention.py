"""Attention that pairs of patches are closed to."""

import pytest
import timm
import torch

import robustvit as rv
from robustvit.analysis import RestrictedAttention, analyze
from robustvit.core.errors import UserError
from robustvit.models.attention_probe import ScoreObserver, attention_blocks, probing
from robustvit.models.layout import Layout
from robustvit.models.restricted_attention import Restriction, attention_layouts
from test_attention_probe import built
from test_lesions import tiny_vit_of

X = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("family", ["vit", "deit", "cait"])
def test_the_whole_grid_changes_nothing_and_closed_pairs_get_no_attention(family, fused):
    model = built(family, fused)
    layouts = attention_layouts(model, X[:2])
    layout = layouts[0][1]
    assert (layout.height, layout.width) == (4, 4)
    assert layout.prefix == {"vit": 1, "deit": 2, "cait": 0}[family]
    before = model(X)
    for distance in (3, 7):
        with Restriction("near", layouts, distance)(model):
            torch.testing.assert_close(model(X), before, rtol=0, atol=1e-5)
    seen = {}

    def look(block, scores, closed):
        seen[block] = scores.softmax(-1)

    restriction = Restriction("near", layouts, 1)
    with restriction(model), probing(model, ScoreObserver(look)):
        assert not torch.allclose(model(X), before, atol=1e-5)
    for block, _ in layouts:
        attention, allowed = seen[block], restriction.allowed(block)
        assert (attention[..., ~allowed] == 0).all()
        assert (attention[..., allowed] > 0).all()
    assert torch.equal(model(X), before)


def test_a_mask_of_timm_gives_the_same():
    model = built("vit")
    layouts = attention_layouts(model, X[:2])
    restriction = Restriction("near", layouts, 1)
    mask = torch.zeros(17, 17).masked_fill(~restriction.allowed(0), -torch.inf)
    x = model.pos_drop(model._pos_embed(model.patch_embed(X)))
    for block in model.blocks:
        x = block(x, attn_mask=mask)
    with restriction(model):
        torch.testing.assert_close(model(X), model.forward_head(model.norm(x)), rtol=0, atol=1e-5)


@pytest.mark.parametrize("prefix", [0, 1, 2])
@pytest.mark.parametrize("distance", [0, 1, 2])
def test_the_control_opens_as_many_pairs_of_patches(prefix, distance):
    layouts = ((0, Layout(prefix, 4, 5)),)
    near, random, other = (
        Restriction(kind, layouts, distance, seed).allowed(0)
        for kind, seed in (("near", 0), ("random", 0), ("random", 1))
    )
    assert int(near.sum()) == int(random.sum())
    assert not torch.equal(near, random)
    assert not torch.equal(random, other)
    for one in (near, random):
        assert one[:prefix].all()
        assert one[:, :prefix].all()
        assert one.any(1).all()  # or the softmax of a query would be undefined
    rows, columns = torch.arange(20) // 5, torch.arange(20) % 5
    patches = near[prefix:, prefix:]
    for i, j in ((0, 6), (7, 8), (3, 19), (12, 12)):
        apart = max(abs(int(rows[i] - rows[j])), abs(int(columns[i] - columns[j])))
        assert bool(patches[i, j]) == (apart <= distance)


def test_with_the_class_token_alone_a_patch_keeps_itself():
    allowed = Restriction("class", ((0, Layout(1, 2, 2)),)).allowed(0)
    assert torch.equal(allowed[1:, 1:], torch.eye(4, dtype=torch.bool))
    assert allowed[0].all()
    assert allowed[:, 0].all()
    assert Restriction("class", ((0, Layout(1, 2, 2)),)).allowed(1) is None


@pytest.mark.parametrize(("family", "message"), [("xcit", "aren't of pairs of tokens"), ("swin", "within windows")])
def test_attention_of_another_kind_is_refused(family, message):
    with pytest.raises(UserError, match=message):
        attention_layouts(built(family), X[:2])


def test_queries_that_are_some_of_the_patches_are_refused():
    model = timm.create_model("levit_128s", num_classes=10, img_size=64).eval()
    with pytest.raises(UserError, match="its queries are some of the patches"):
        attention_layouts(model, torch.rand(2, 3, 64, 64))


def test_the_analysis_closes_what_its_names_say():
    model = tiny_vit_of(2)
    torch.nn.init.normal_(model.backbone.head.weight)
    options = {"images": 40, "quiet": True}
    (finding,) = analyze(model, "digits", what="restricted_attention", **options)
    near, class_only = finding.charts
    assert [line.name for line in near.lines] == ["near", "random"]
    assert near.lines[0].xs == (0.0, 1.0, 2.0, 3.0)
    assert near.lines[0].ys[-1] == near.lines[1].ys[-1] == class_only.lines[0].ys[0]  # nothing is closed
    x, y = rv.load_data("digits", 40)
    layouts = attention_layouts(model, x[:2])
    for line, chosen in (("first", layouts[:1]), ("last", layouts[1:])):
        with Restriction("class", chosen)(model), torch.no_grad():
            expected = float((model(x).argmax(1) == y).float().mean())
        assert {one.name: one.ys[1] for one in class_only.lines}[line] == pytest.approx(expected)
    ends = [line.ys[-1] for line in class_only.lines[:2]]
    assert ends[0] == ends[1]  # all blocks


def test_without_a_class_token_there_is_no_class_only(vit):
    (finding,) = analyze(vit, "digits", what=RestrictedAttention(distances=(1,)), images=8, quiet=True)
    assert len(finding.charts) == 1
    assert "There is no class token" in finding.caption
    assert len(attention_blocks(vit)) == 2


def test_distances_that_close_nothing_are_the_whole_network():
    conditions = RestrictedAttention(distances=(1, 7, 8, 20), random=False)._conditions(((0, Layout(0, 8, 8)),), 0)
    assert [one.name for one in conditions] == ["clean", "distance 1"]


def test_the_class_token_may_join_after_the_first_blocks():
    layouts = ((0, Layout(0, 8, 8)), (1, Layout(1, 4, 4)), (2, Layout(1, 4, 4)))
    conditions = {one.name: one.around for one in RestrictedAttention()._conditions(layouts, 0)}
    closed = {count: conditions[f"class token only in the first {count}"].layouts for count in (1, 2)}
    assert closed == {1: layouts[1:2], 2: layouts[1:]}
    assert conditions["class token only in the last 1"].layouts == layouts[2:]
    assert "class token only in the first 3" not in conditions

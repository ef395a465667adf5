"""Where attention goes, and where the strongest feature lies."""

import numpy as np
import pytest
import timm
import torch

import robustvit as rv
from robustvit.analysis import AttentionMaps, EigenCam, analyze
from robustvit.analysis.attention_maps import _Distances, apart, rollout
from robustvit.analysis.eigen_cam import eigen_cam
from robustvit.analysis.pictures import over_image
from robustvit.core.errors import UserError
from robustvit.core.figures import percent
from robustvit.models import Normalized
from robustvit.models.attention_probe import ScoreObserver, probing
from robustvit.models.layout import Layout
from test_attention_probe import built
from test_lesions import tiny_vit_of

OPTIONS = {"images": 10, "quiet": True}


def test_distances_are_those_of_the_attention_whatever_the_batches():
    model = tiny_vit_of(2)
    seen = {}
    x, _ = rv.load_data("digits", 10)
    with probing(model, ScoreObserver(lambda block, scores, closed: seen.update({block: scores.softmax(-1)}))):
        model(x)
    expected = np.zeros((2, 2))
    for block, attention in seen.items():
        patches = attention[..., 1:, 1:]
        patches = patches / patches.sum(-1, keepdim=True)
        for i in range(16):
            for j in range(16):
                length = np.hypot(i // 4 - j // 4, i % 4 - j % 4) / 4
                expected[block] += patches[:, :, i, j].sum(0).detach().numpy() * length / (16 * 10)
    for batch_size in (10, 3):
        (finding,) = analyze(model, "digits", what="attention_maps", batch_size=batch_size, **OPTIONS)
        np.testing.assert_allclose(finding.arrays["distances"], expected, rtol=1e-5)
    mean, uniform = finding.charts[0].lines
    np.testing.assert_allclose(mean.ys, expected.mean(1), rtol=1e-5)
    assert mean.ranges[0] == pytest.approx((expected[0].min(), expected[0].max()))
    assert uniform.ys[0] == pytest.approx(float(apart(Layout(1, 4, 4)).mean()))


def test_attention_to_itself_alone_is_at_no_distance_and_rolls_out_to_itself():
    eye = torch.eye(5).expand(2, 5, 5)
    assert torch.equal(rollout([eye, eye]), eye)
    assert torch.diagonal(apart(Layout(0, 3, 2))).sum() == 0
    assert apart(Layout(0, 1, 4))[0, 3] == 0.75
    mixed = rollout([torch.rand(2, 5, 5).softmax(-1) for _ in range(3)])
    torch.testing.assert_close(mixed.sum(-1), torch.ones(2, 5))


def test_the_maps_of_models_and_images_are_columns(vit):
    model = tiny_vit_of(2)
    (finding,) = analyze(
        model, "digits", what=AttentionMaps(shown=3), on=["clean", "fgsm"], threat=rv.LpBall("inf", 0.1), **OPTIONS
    )
    (pictures,) = finding.pictures
    assert finding.arrays[pictures.array].shape == (3, 6, 3, 8, 8)
    assert pictures.columns[:2] == ("image, clean", "image, fgsm")
    (other,) = analyze(vit, "digits", what=AttentionMaps(shown=2), **OPTIONS)  # without a class token
    assert other.arrays["distances"].shape == (2, 2)
    with pytest.raises(UserError, match="within windows"):
        analyze(built("swin"), (torch.rand(4, 3, 32, 32), torch.arange(4)), what="attention_maps", quiet=True)


def test_eigen_cam_is_the_first_singular_direction_and_has_no_sign():
    features = torch.randn(3, 6, 4, 5)
    maps = eigen_cam(features)
    for image in range(3):
        positions = features[image].flatten(1).T.double().numpy()
        centered = positions - positions.mean(0)
        _, _, directions = np.linalg.svd(centered, full_matrices=False)
        expected = centered @ directions[0]
        np.testing.assert_allclose(np.abs(maps[image].flatten()), np.abs(expected), atol=1e-9)
    torch.testing.assert_close(eigen_cam(-features), maps)


@pytest.mark.parametrize("corner", [0, 4])
def test_eigen_cam_finds_a_planted_object(corner):
    features, place = (
        0.1 * torch.randn(16, 8, 6, 6),
        (slice(None), slice(corner, corner + 2), slice(corner, corner + 2)),
    )
    features.permute(0, 2, 3, 1)[place] += 3 * torch.randn(16, 1, 1, 8).sign()
    maps = eigen_cam(features)
    inside = maps[place].flatten(1).amin(1)
    outside = maps.clone()
    outside[place] = -torch.inf
    assert (inside > outside.flatten(1).amax(1)).all()


def test_eigen_cam_of_a_transformer_and_a_convolutional_network_next_to_the_original():
    vit = tiny_vit_of(2)
    resnet = Normalized(timm.create_model("resnet18", num_classes=10), (0.0,), (1.0,)).eval()
    x, y = torch.rand(6, 3, 64, 64), torch.arange(6)
    (of_resnet,) = analyze(resnet, (x, y), what=EigenCam(shown=2), quiet=True)
    assert "layer4.1 (2 x 2 positions)" in of_resnet.caption
    (of_vit,) = analyze(vit, "digits", what=EigenCam(shown=2), **OPTIONS)
    assert "blocks.1.norm1 (4 x 4 positions)" in of_vit.caption
    threat = rv.LpBall("inf", 0.1)
    compared = {"what": EigenCam(shown=2), "on": "fgsm", "threat": threat, "compare": {"other": tiny_vit_of(3)}}
    (both,) = analyze(vit, "digits", **compared, **OPTIONS)
    assert both.pictures[0].columns[1:] == ("EigenCAM, other", "original image")
    original = both.arrays[both.pictures[0].array][:, 2]
    np.testing.assert_array_equal(original, rv.load_data("digits", 10)[0][:2].numpy())


def test_eigen_cam_inside_masks_is_numpys(tmp_path):
    masks = np.zeros((360, 8, 8), np.uint8)
    masks[:, :4] = 1  # the upper two of four rows of positions
    np.save(tmp_path / "masks.npy", masks)
    tables = []
    for given, inside in ((tmp_path / "masks.npy", np.s_[:, :2]), (None, np.s_[:, 1:3, 1:3])):
        (finding,) = analyze(tiny_vit_of(2), "digits", what=EigenCam(shown=1, masks=given), **OPTIONS)
        maps = finding.arrays["maps"]
        scaled = (maps - maps.min((1, 2), keepdims=True)) / np.ptp(maps, (1, 2), keepdims=True)
        is_inside = np.zeros(maps.shape, bool)
        is_inside[inside] = True
        means = [np.mean(scaled[chosen].reshape(len(maps), -1), 1) for chosen in (is_inside, ~is_inside)]
        ((within, without, difference, largest, positions),) = finding.tables[0].rows
        assert [float(within), float(without)] == pytest.approx([mean.mean() for mean in means], abs=6e-4)
        assert float(difference.split()[0]) == pytest.approx((means[0] - means[1]).mean(), abs=6e-4)
        at = maps.reshape(len(maps), -1).argmax(1)
        assert largest == percent(is_inside.reshape(len(maps), -1)[np.arange(len(maps)), at].mean())
        assert positions == percent(is_inside.mean())
        tables.append(finding.tables[0])
    assert "inside the masks" in tables[0].columns[0]
    assert tables[0].rows != tables[1].rows


def test_layers_that_cannot_be_shown_are_one_sentence():
    model = tiny_vit_of(1)
    with pytest.raises(UserError, match=r"no module 'blocks.9'"):
        analyze(model, "digits", what=EigenCam(layer="blocks.9"), **OPTIONS)
    with pytest.raises(UserError, match="grid of positions in the image"):
        analyze(model, "digits", what=EigenCam(layer="head"), **OPTIONS)


def test_a_map_over_an_image_keeps_its_size_and_shows_the_largest_value_darkest():
    x = torch.full((1, 3, 8, 8), 0.5)
    maps = torch.zeros(1, 2, 2)
    maps[0, 1, 1] = 1
    shown = over_image(x, maps)
    assert shown.shape == (1, 3, 8, 8)
    assert shown[0, :, 7, 7].sum() != shown[0, :, 0, 0].sum()
    assert 0 <= shown.min() <= shown.max() <= 1


def test_memory_bounds_the_images_whose_attention_is_there_at_once():
    layouts = ((0, Layout(1, 4, 4)), (1, Layout(1, 4, 4)))
    one_image = 3 * 8 * 2 * 17**2 / 1e9  # copies, bytes, heads, tokens
    distances = _Distances(layouts, {0: 2, 1: 1})
    assert distances.rows_in(5.5 * one_image) == 5
    assert distances.rows_in(0.1 * one_image) == 1

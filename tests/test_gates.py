"""Maps of the gates between adapters, and the number for what they are said to show."""

import numpy as np
import pytest
import torch
from torch import nn

import robustvit as rv
from conftest import token_vit
from robustvit.analysis.gates import gate_maps
from robustvit.core.errors import UserError


def gated(**settings) -> nn.Module:
    model = token_vit({"name": "tora", **settings})
    with torch.no_grad():
        for parameter in model.backbone.adapters.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


@pytest.fixture
def data(digits):
    return digits[0][:12], digits[1][:12]


@pytest.mark.parametrize("softmax", ["adapter", "per_token", "token", "all"])
def test_swapping_the_adapters_turns_every_map_around(softmax, data):
    model = gated(softmax=softmax)
    maps = gate_maps(model.backbone, model, data[0])
    assert maps.shape == (12, 2, 4, 4)
    assert maps.min() > 0
    assert maps.max() < 1
    assert maps.std() > 1e-4
    for layer in model.backbone.adapters:
        layer.acc, layer.rob = layer.rob, layer.acc
    torch.testing.assert_close(gate_maps(model.backbone, model, data[0]), 1 - maps, rtol=0, atol=1e-5)


def test_a_map_is_the_mean_over_queries_without_the_class_token(data):
    model = gated()
    net, seen = model.backbone, []
    net.adapters[1].fusion.register_forward_pre_hook(lambda fusion, inputs: seen.append(fusion.gates(*inputs)))
    maps = gate_maps(net, model, data[0])
    torch.testing.assert_close(maps[:, 1].flatten(1), seen[0][0].mean(1)[:, 1:])
    assert all(len(layer.fusion._forward_pre_hooks) <= 1 for layer in net.adapters), "its hooks are removed"


def planted(model: nn.Module, wanted: torch.Tensor) -> nn.Module:
    """With gates of the accuracy adapter that are `wanted` (tokens) for every query."""

    def gates(z, a, r):
        acc = wanted.expand(len(z), z.shape[1], -1)
        return torch.stack([acc, 1 - acc])

    for layer in model.backbone.adapters:
        layer.fusion.gates = gates
    return model


def test_the_number_is_the_mean_inside_and_outside_of_the_middle(data, tmp_path):
    middle = torch.full((4, 4), 0.2)
    middle[1:3, 1:3] = 0.7
    model = planted(gated(), torch.cat([torch.zeros(1), middle.flatten()]))
    (finding,) = rv.analyze(model, data, what="gates", quiet=True)
    assert finding.tables[0].rows[-1][1:3] == ("0.700", "0.200")
    assert finding.tables[0].rows[-1][3].startswith("+0.500 ")
    pictures = finding.arrays["pictures"]
    assert pictures.shape == (6, 3, 3, 8, 8)
    center, corner = pictures[0, 1, :, 3, 3], pictures[0, 1, :, 0, 0]
    assert center[0] > center[2], "red above 0.5"
    assert corner[2] > corner[0], "blue below"
    masks = np.zeros((12, 8, 8), np.uint8)
    masks[:, 2:6, 2:6] = 1
    np.save(tmp_path / "masks.npy", masks)
    (given,) = rv.analyze(model, data, what={"name": "gates", "masks": tmp_path / "masks.npy"}, quiet=True)
    assert given.tables[0].rows[-1][1:] == finding.tables[0].rows[-1][1:]
    masks[:, :, :4] = 1
    np.save(tmp_path / "other.npy", masks)
    (other,) = rv.analyze(model, data, what={"name": "gates", "masks": tmp_path / "other.npy"}, quiet=True)
    assert other.tables[0].rows[-1][1] != finding.tables[0].rows[-1][1]


def test_equal_gates_are_white(data):
    model = planted(gated(), torch.full((17,), 0.5))
    (finding,) = rv.analyze(model, data, what="gates", head="rob", quiet=True)
    assert np.array_equal(finding.arrays["pictures"][:, 1:], np.ones((6, 2, 3, 8, 8), np.float32))


def test_colors_need_a_spread(data):
    with pytest.raises(UserError, match=r"spread.*greater than 0"):
        rv.analyze(gated(), data, what={"name": "gates", "spread": 0}, quiet=True)


def test_what_has_no_gates_or_no_masks_is_refused(data, trained, tmp_path):
    for model in (trained, token_vit(), token_vit("single"), token_vit("heads")):
        with pytest.raises(UserError, match="no gates between adapters; those with model.adapters"):
            rv.analyze(model, data, what="gates", quiet=True)
    np.save(tmp_path / "few.npy", np.ones((3, 8, 8)))
    np.save(tmp_path / "full.npy", np.ones((12, 8, 8)))
    for file, problem in (("few.npy", r"the shape \(3, 8, 8\), not \(12, H, W\)"), ("full.npy", "nothing else")):
        with pytest.raises(UserError, match=problem):
            rv.analyze(gated(), data, what={"name": "gates", "masks": tmp_path / file}, quiet=True)
    with pytest.raises(UserError, match="nowhere"):
        rv.analyze(gated(), data, what={"name": "gates", "masks": tmp_path / "nowhere.npy"}, quiet=True)

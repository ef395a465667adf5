"""MeanSparse: what it changes, by which statistics, and which gradients it passes on."""

import pytest
import torch
from torch import nn

from conftest import tiny_vit
from robustvit.core.errors import UserError
from robustvit.models import create_model
from robustvit.models.mean_sparse import MeanSparse, mean_sparse


def sparse_modules(model):
    return {name: module for name, module in model.named_modules() if isinstance(module, MeanSparse)}


def inputs_of(model, activation, x):
    seen = []
    handle = model.get_submodule(activation).register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    with torch.no_grad():
        model(x)
    handle.remove()
    return seen[0]


def test_statistics_are_those_of_each_channel_whatever_the_batches(digits):
    model, x = tiny_vit().eval(), digits[0][:30]
    sparse = mean_sparse(model, x, 0.0, batch_size=7)
    names = [f"backbone.blocks.{i}.mlp.act" for i in range(len(model.backbone.blocks))]
    assert list(sparse_modules(sparse)) == names
    for name in names:
        values, module = inputs_of(model, name, x).double().flatten(0, 1), sparse.get_submodule(name)
        assert torch.allclose(module.mean.double(), values.mean(0), atol=1e-6)
        assert torch.allclose(module.std.double(), values.std(0, correction=0), atol=1e-6)
    assert torch.equal(sparse(x), model(x))  # a band without width changes nothing


def test_inputs_inside_the_band_become_the_mean_and_have_no_gradient():
    mean, std = torch.tensor([1.0, -2.0]), torch.tensor([0.5, 1.0])
    x = torch.tensor([[1.2, -2.5], [1.6, -3.5]], requires_grad=True)
    expected = torch.tensor([[1.0, -2.0], [1.6, -3.5]])
    for straight_through, slope in ((False, [[0.0, 0], [1, 1]]), (True, [[1.0, 1], [1, 1]])):
        module = MeanSparse(nn.Identity(), mean, std, -1, 1.0, straight_through)
        out = module(x)
        assert torch.allclose(out, expected)
        assert torch.autograd.grad(out.sum(), x)[0].tolist() == slope


SMALL = {"depths": [1, 1, 1, 1], "dims": [8, 16, 32, 64]}


@pytest.mark.parametrize(("name", "settings", "axis"), [("convnext_tiny", SMALL, -1), ("resnet10t", {}, 1)])
def test_channels_are_found_in_pictures_too(name, settings, axis):
    """ConvNeXt's MLPs keep their channels last; a ResNet's activations have them second."""
    model = create_model(name, num_classes=10, img_size=32, **settings).eval()
    x = torch.rand(4, 3, 32, 32)
    sparse = mean_sparse(model, x, 0.5)
    assert {module.axis for module in sparse_modules(sparse).values()} == {axis}
    assert sparse(x).shape == (4, 10)
    assert not torch.equal(sparse(x), model(x))
    straight = mean_sparse(model, x, 0.5, straight_through=True)
    assert torch.allclose(straight(x), sparse(x), atol=1e-5)


def test_the_given_model_stays_as_it_is(digits):
    model, x = tiny_vit().train(), digits[0][:8]
    state = {name: value.clone() for name, value in model.state_dict().items()}
    sparse = mean_sparse(model, x)
    assert not sparse_modules(model)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert model.training
    assert sparse.training


def test_models_without_activations_and_bands_below_zero_are_refused():
    with pytest.raises(UserError, match=r"Linear: no activation modules such as nn\.GELU"):
        mean_sparse(nn.Linear(2, 2), torch.rand(3, 2))
    with pytest.raises(UserError, match=r"alpha: -1 must be at least 0"):
        mean_sparse(tiny_vit(), torch.rand(1, 3, 8, 8), -1)

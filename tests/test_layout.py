"""Features have positions: for every family of networks, what changes most lies where the image was changed."""

import pytest
import timm
import torch

from robustvit.core.errors import UserError
from robustvit.core.streams import seeded_globals
from robustvit.models.attention_probe import recording
from robustvit.models.layout import Layout, feature_blocks, layout_of, short_names

FAMILIES = {
    "vit": ("vit_tiny_patch16_224", {"img_size": 32, "patch_size": 8, "depth": 2}, 1),
    "distilled": ("deit_tiny_distilled_patch16_224", {"img_size": 32, "patch_size": 8, "depth": 2}, 2),
    "registers": ("vit_small_patch14_reg4_dinov2", {"img_size": 32, "patch_size": 8, "depth": 2}, 5),
    "no class token": (
        "vit_base_patch16_siglip_224",
        {"img_size": 32, "patch_size": 8, "depth": 2, "embed_dim": 48},
        0,
    ),
    "xcit": ("xcit_nano_12_p16_224", {"img_size": 32, "depth": 2}, 0),
    "swin": ("swin_tiny_patch4_window7_224", {"img_size": 32, "patch_size": 2, "window_size": 4, "depths": (2, 2)}, 0),
    "convnext": ("convnext_atto", {"depths": (1, 1, 1, 1)}, 0),
    "resnet": ("resnet18", {}, 0),
}


@pytest.fixture(params=FAMILIES)
def family(request):
    name, settings, prefix = FAMILIES[request.param]
    with seeded_globals(request.param):
        model = timm.create_model(name, num_classes=10, **settings).eval().requires_grad_(False)
    return model, prefix


def test_a_bright_patch_changes_the_features_most_where_it_lies(family):
    model, prefix = family
    size = 64 if "ConvNeXt" in type(model).__name__ or "ResNet" in type(model).__name__ else 32
    plain = torch.full((1, 3, size, size), 0.3)
    bright = plain.clone()
    bright[..., size * 3 // 4 :, : size // 4] = 1  # lower left
    name = feature_blocks(model)[0]
    features = []
    with recording(model, [name]) as seen:
        for x in (plain, bright):
            model(x)
            features.append(seen[name])
    layout = layout_of(model, tuple(features[0].shape), (size, size))
    assert layout.prefix == prefix
    change = (layout.as_map(features[1]) - layout.as_map(features[0])).abs().sum(1)[0]
    assert change.shape == (layout.height, layout.width)
    row, column = divmod(int(change.argmax()), layout.width)
    assert row >= layout.height * 5 // 8
    assert column < max(1, layout.width * 3 // 8)


def test_pictures_that_are_no_squares_keep_their_shape():
    model = torch.nn.Identity()
    assert layout_of(model, (1, 8 * 4, 16), (64, 32)) == Layout(0, 8, 4)
    assert layout_of(model, (1, 8 * 4 + 1, 16), (64, 32)) == Layout(1, 8, 4)
    assert layout_of(model, (1, 48, 8, 4), (64, 32)) == Layout(0, 8, 4, channels_last=False)
    assert layout_of(model, (1, 8, 4, 48), (64, 32)) == Layout(0, 8, 4, channels_last=True)
    assert layout_of(model, (1, 10), (64, 32)) is None
    assert layout_of(model, (1, 5, 7, 9), (64, 64)) is None


def test_maps_and_tokens_hold_the_same_numbers():
    tokens = torch.arange(2 * 5 * 3).float().reshape(2, 5, 3)
    layout = Layout(1, 2, 2)
    assert torch.equal(layout.as_map(tokens)[1, 2], tokens[1, 1:, 2].reshape(2, 2))
    assert torch.equal(layout.prefix_tokens(tokens), tokens[:, :1])
    assert Layout(0, 2, 2, channels_last=False).prefix_tokens(torch.zeros(2, 3, 2, 2)).shape[1] == 0


def test_networks_without_blocks_are_refused_and_names_are_short():
    with pytest.raises(UserError, match="Block or Bottleneck"):
        feature_blocks(torch.nn.Sequential(torch.nn.Linear(2, 2)))
    assert short_names(["backbone.blocks.0", "backbone.blocks.11"]) == ["0", "11"]
    assert short_names(["a.blocks.0", "b.blocks.0"]) == ["a.blocks.0", "b.blocks.0"]
    assert short_names(["blocks.0"]) == ["0"]

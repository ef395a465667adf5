"""Recipes and sweeps resolve to the settings they had when golden/recipes.json.gz was written, but for renamed keys.

The file holds `recipe_from(name).to_dict()` of every recipe and the tree of every sweep, before they had variants.
CHANGELOG.md, "Renamed keys", has a table `| old | new |`; its rows that begin with `recipe.` are applied here:
- `recipe.start.old` to `recipe.start.new`: the key moves; `*` stands for any position in a list
- `recipe.phases.*.old` to `recipe.phases.*.new.0 {name: x}`: to a position in a list, with more keys; null: no entry
- `recipe.device: cpu` to `recipe.device: auto`: another default
"""

import gzip
import json
import re
from pathlib import Path

import pytest
import yaml

from robustvit.core.config import load_sweep, locate, shipped_recipes, shipped_sweeps
from robustvit.training import recipe_from

ROOT = Path(__file__).parents[1]
GOLDEN = json.loads(gzip.decompress((ROOT / "tests" / "golden" / "recipes.json.gz").read_bytes()))
NEW_KEYS: dict[str, object] = {
    "recipe.phases.*.events": [],
    "recipe.task": {"name": "classify"},
    "recipe.phases.*.optimizer.fallback": [],
    "recipe.phases.*.optimizer.settings": {},
    "recipe.phases.*.eps_schedule.begin": 0.0,
    "recipe.phases.*.augmentation_schedule.begin": 0.0,
    "recipe.phases.*.augmentation.border": "zeros",
    "recipe.phases.*.augmentation.base.border": "zeros",
    "recipe.data.labels": None,
    "recipe.phases.*.generated.data.top_fraction": None,
    "recipe.phases.*.generated.data.min_distance": None,
    "recipe.model.adapters": None,
    "recipe.phases.*.head": None,
    "recipe.phases.*.alternate": None,
    "recipe.gradient_sum": "exact",
    "recipe.precision": "float32",
    "recipe.activation_checkpointing": False,
    "recipe.compile": False,
    "recipe.shard": False,
    "recipe.train_images": None,
}
"""Settings that came later, with the default that every recipe from before must have."""
DESCRIPTION = ("about", "paper", "expect")
"""Of a sweep: text and numbers about it, which are no settings."""


def renamed_keys(text: str) -> list[tuple[str, str]]:
    """The rows of the table under "Renamed keys" that are about recipes."""
    section = re.search(r"^#+ Renamed keys\n(.*?)(?=^#|\Z)", text, re.M | re.S)
    rows = re.findall(r"^\| *`(recipe\.[^`]*)` *\| *`(recipe\.[^`]*)` *\|", section[1] if section else "", re.M)
    return [(old.removeprefix("recipe."), new.removeprefix("recipe.")) for old, new in rows]


def renamed(tree: dict, old: str, new: str) -> dict:
    if ": " in old:
        (key, before), (new_key, after) = old.split(": "), new.split(": ")
        assert key == new_key
        return changed(tree, key.split("."), yaml.safe_load(before), yaml.safe_load(after))
    path, _, added = new.partition(" ")
    return moved(tree, old.split("."), path.split("."), yaml.safe_load(added) if added else {})


def changed(tree: object, path: list[str], before: object, after: object) -> object:
    if not path:
        return after if tree == before else tree
    if path[0] == "*":
        return [changed(item, path[1:], before, after) for item in tree]
    return {**tree, path[0]: changed(tree[path[0]], path[1:], before, after)}


def moved(tree: object, old: list[str], new: list[str], added: dict) -> object:
    if tree is None:
        return None
    if old[0] == new[0] and len(old) > 1:
        if old[0] == "*":
            return [moved(item, old[1:], new[1:], added) for item in tree]
        return {**tree, old[0]: moved(tree[old[0]], old[1:], new[1:], added)} if old[0] in tree else tree
    assert len(old) == 1, "only the last part of a path may change"
    if old[0] not in tree:
        return tree
    rest = {key: value for key, value in tree.items() if key != old[0]}
    value = tree[old[0]]
    if len(new) == 1:
        return {**rest, new[0]: value}
    assert new[1:] == ["0"], "into the first position of a list"
    return {**rest, new[0]: [] if value is None else [{**added, **value}]}


def renamed_sweep(tree: dict, old: str, new: str) -> dict:
    """The settings of a grid and of cases are paths, those of phases without `phases.*.`."""
    if ": " in old:
        return tree
    old, new = (path.removeprefix("phases.*.").partition(" ")[0] for path in (old, new))

    def paths(settings: dict) -> dict:
        return {re.sub(rf"^{re.escape(old)}(?=\.|$)", new, key): value for key, value in settings.items()}

    changed = {"grid": paths(tree["grid"])} if "grid" in tree else {}
    return {**tree, **changed, **({"cases": [paths(case) for case in tree["cases"]]} if "cases" in tree else {})}


def without_new_keys(old: object, new: object, path: str) -> object:
    """`new` without the keys that `old` hasn't, each of which is known and has its default."""
    if isinstance(old, dict) and isinstance(new, dict) and old.get("name") == new.get("name"):
        for key in set(new) - set(old):
            place = re.sub(r"\.\d+(?=\.)", ".*", f"{path}.{key}")
            assert place in NEW_KEYS, f"{place} is new"
            assert new[key] == NEW_KEYS[place], place
        return {key: without_new_keys(old[key], new[key], f"{path}.{key}") for key in new if key in old}
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return [without_new_keys(*pair, f"{path}.{i}") for i, pair in enumerate(zip(old, new, strict=True))]
    return new


TABLE = renamed_keys((ROOT / "CHANGELOG.md").read_text())


@pytest.mark.parametrize("name", GOLDEN["recipes"])
def test_every_recipe_has_the_settings_it_had(name):
    expected = GOLDEN["recipes"][name]
    for old, new in TABLE:
        expected = renamed(expected, old, new)
    now = recipe_from(name).to_dict()
    del now["info"]
    assert without_new_keys(expected, now, "recipe") == expected


@pytest.mark.parametrize("name", GOLDEN["sweeps"])
def test_every_sweep_has_the_points_it_had(name):
    expected = GOLDEN["sweeps"][name]
    for old, new in TABLE:
        expected = renamed_sweep(expected, old, new)
    now = load_sweep(name)
    assert {key: now[key] for key in now if key not in DESCRIPTION} == {
        key: expected[key] for key in expected if key not in DESCRIPTION
    }


def test_every_name_from_before_is_still_a_name():
    assert len(GOLDEN["recipes"]) == 103
    assert len(GOLDEN["sweeps"]) == 11
    places = [locate(name, shipped_recipes()) for name in GOLDEN["recipes"]]
    assert None not in places
    assert len(set(places)) == len(places)
    assert set(GOLDEN["sweeps"]) <= set(shipped_sweeps())


def test_the_table_of_renamed_keys_is_read():
    table = """## Other
| `recipe.seed` | `recipe.sede` |
### Renamed keys
| old | new |
| --- | --- |
| `robustvit.look` | `robustvit.evaluate_iterate` |
| `recipe.phases.*.attention_scaling` | `recipe.phases.*.events.0 {name: attention_scaling}` |
| `recipe.start.renormalise` | `recipe.start.renormalize` |
| `recipe.device: cpu` | `recipe.device: auto` |
### After
| `recipe.name` | `recipe.title` |
"""
    tree: dict = {
        "device": "cpu",
        "start": {"renormalise": True},
        "phases": [{"attention_scaling": {"every": 2}}, {"attention_scaling": None}],
    }
    sweep = {
        "recipe": "x",
        "grid": {"attention_scaling.every": [1, 2], "attention_x": [1]},
        "cases": [{"a": 1}],
    }
    for old, new in renamed_keys(table):
        tree, sweep = renamed(tree, old, new), renamed_sweep(sweep, old, new)
    assert tree == {
        "device": "auto",
        "start": {"renormalize": True},
        "phases": [{"events": [{"name": "attention_scaling", "every": 2}]}, {"events": []}],
    }
    assert sweep == {"recipe": "x", "grid": {"events.0.every": [1, 2], "attention_x": [1]}, "cases": [{"a": 1}]}
    assert renamed({"device": "cuda", "start": None}, "start.a", "start.b") == {"device": "cuda", "start": None}
    with pytest.raises(AssertionError, match="is new"):
        without_new_keys({"a": 1}, {"a": 1, "b": 2}, "recipe")

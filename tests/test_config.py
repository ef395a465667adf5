"""Objects are their own configuration, and mistakes are told with path and nearest name."""

import re
from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

import robustvit.training  # noqa: F401 - registers everything
from robustvit.attacks import FGSM, PGD, Restarts
from robustvit.attacks.step_size import StepSize, parse_step_size
from robustvit.cli.listing import KINDS
from robustvit.core.component import build, explain, format_fraction, kinds, parse_number, registered, to_dict
from robustvit.core.config import apply_overrides, load_recipe, shipped_recipes
from robustvit.core.errors import UserError
from robustvit.threats import LpBall
from robustvit.training import Recipe, recipe_from

ROOT = Path(__file__).parents[1]
NEEDS = {
    "arrays": {"path": "x.npz"},
    "folder": {"path": "x"},
    "generated": {"path": "x.npz"},
    "attention_scaling": {"inner": "pgd"},
    "restarts": {"inner": "pgd"},
    "ensemble": {"attacks": ["fgsm", {"name": "pgd", "steps": 3}]},
    "from_surrogate": {"inner": "pgd", "surrogate": __file__},  # read only when it attacks
    "shards": {"path": "x-*.tar"},
}


def needs(kind: str, name: str) -> dict:
    return {} if kind == "event" else NEEDS.get(name, {})


COMPONENTS = [(kind, name) for kind in kinds() for name in registered(kind)]


@pytest.mark.parametrize(("kind", "name"), COMPONENTS)
def test_every_component_is_read_back_from_its_own_dict(kind, name):
    made = build(kind, {"name": name, **needs(kind, name)})
    again = build(kind, yaml.safe_load(yaml.safe_dump(to_dict(made))))
    assert again == made
    assert to_dict(again)["name"] == name


@pytest.mark.parametrize(("kind", "name"), COMPONENTS)
def test_every_component_says_what_it_is_and_refuses_unknown_settings(kind, name):
    assert registered(kind)[name].__doc__.strip().endswith((".", "`"))
    with pytest.raises(ValidationError, match="no such setting"):
        build(kind, {"name": name, **needs(kind, name), "nonsense": 1})


def test_python_callers_are_checked_like_yaml():
    with pytest.raises(ValidationError):
        PGD(steps="many")
    with pytest.raises(ValidationError):
        PGD(steps=0)
    with pytest.raises(ValidationError):
        Restarts(inner=print)
    with pytest.raises(Exception, match="frozen|immutable|assign"):
        PGD().steps = 3


def test_nested_mistakes_come_all_at_once_with_their_paths():
    with pytest.raises(ValidationError) as caught:
        Restarts(inner={"name": "pgd", "stps": 3, "step": "eps/0", "loss": "dlrr"}, times=0)
    text = explain(caught.value, "attack")
    assert "attack.inner.stps: no such setting; did you mean 'steps'?" in text
    assert "attack.inner.step: " in text
    assert "attack.inner.loss: input should be 'ce', 'cw', 'pm' or 'dlr', not 'dlrr'" in text
    assert "attack.times: " in text


@pytest.mark.parametrize(
    ("text", "eps", "steps", "size"),
    [
        ("2/255", 0.1, 9, 2 / 255),
        ("eps/4", 0.1, 9, 0.025),
        ("1.5*eps/steps", 0.1, 10, 0.015),
        ("eps/3", 0.3, 9, 0.1),
        ("eps", 0.3, 1, 0.3),
        (0.01, 1, 1, 0.01),
    ],
)
def test_step_sizes_are_what_their_text_says(text, eps, steps, size):
    step = parse_step_size(text)
    assert step(eps, steps) == pytest.approx(size, rel=1e-12)
    assert parse_step_size(str(step)) == step


@pytest.mark.parametrize("text", ["", "fast", "eps*2", "-1", 0, "eps/0", None, [], "1/0*eps"])
def test_step_sizes_that_make_no_sense_are_refused(text):
    with pytest.raises(ValueError):
        parse_step_size(text)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (8 / 255, "8/255"),
        (1 / 510, "0.5/255"),
        (1 / 300, "0.85/255"),
        (0.5, "0.5"),
        (0.15, "0.15"),
        (0.5 / 255, "0.5/255"),
        (0, "0"),
        (1, "1"),
    ],
)
def test_eps_is_shown_as_it_was_meant(value, text):
    assert format_fraction(value) == text
    assert parse_number(text) == value


def test_overrides_reach_any_depth_and_a_new_name_drops_its_siblings():
    tree = {
        "objective": {"name": "trades", "beta": 3},
        "threat": {"eps": 1},
        "phases": [{"epochs": 1}],
        "data": "digits",
    }
    changed = apply_overrides(tree, ["objective.name=standard", "threat.eps=8/255", "phases.0.epochs=5", "data.root=x"])
    assert changed["objective"] == {"name": "standard"}
    assert changed["threat"] == {"eps": "8/255"}
    assert changed["phases"] == [{"epochs": 5}]
    assert changed["data"] == {"name": "digits", "root": "x"}
    assert tree["objective"] == {"name": "trades", "beta": 3}
    for bad in ("threat.eps", "=3", "phases.7.epochs=1", "a=[1"):
        with pytest.raises(UserError):
            apply_overrides(tree, [bad])


def test_extends_merges_maps_replaces_lists_and_refuses_cycles(tmp_path):
    (tmp_path / "a.yaml").write_text("name: a\nthreat: {norm: inf, eps: 1}\nphases: [{epochs: 1}, {epochs: 2}]\n")
    (tmp_path / "b.yaml").write_text("extends: a.yaml\nname: b\nthreat: {eps: 2}\nphases: [{epochs: 3}]\n")
    assert load_recipe(tmp_path / "b.yaml") == {
        "name": "b",
        "threat": {"norm": "inf", "eps": 2},
        "phases": [{"epochs": 3}],
    }
    (tmp_path / "c.yaml").write_text("extends: d.yaml\n")
    (tmp_path / "d.yaml").write_text("extends: c.yaml\n")
    with pytest.raises(UserError, match="extends itself"):
        load_recipe(tmp_path / "c.yaml")


@pytest.mark.parametrize("name", shipped_recipes())
def test_every_recipe_reads_back_from_what_a_run_stores(name):
    recipe = recipe_from(name)
    assert recipe_from(yaml.safe_load(yaml.safe_dump(recipe.to_dict()))) == recipe


@pytest.mark.parametrize("name", shipped_recipes())
def test_every_recipe_opens_with_its_header(name):
    text = shipped_recipes()[name].read_text()
    header = " ".join(line.removeprefix("#") for line in text.splitlines() if line.startswith("#"))
    for word in ("Paper:", "Expect:", "Needs:", f"robustvit train {name}"):
        assert word in header, f"{name}: the header lacks '{word}'"


def test_recipe_mistakes_are_told_where_the_user_wrote_them():
    with pytest.raises(UserError) as caught:
        recipe_from("digits/trades", ["objective.bta=3", "threat.eps=8", "epochz=1", "model.patch_size=two"])
    assert str(caught.value).count("\n") == 3
    for line in (
        "recipe.objective.bta: no such setting; did you mean 'beta'?",
        "did you mean 8/255?",
        "recipe.epochz: no such setting; did you mean 'epochs'?",
        "recipe.model.patch_size: ",
    ):
        assert line in str(caught.value)


def test_phases_inherit_from_the_top_and_change_what_they_name():
    tree = {
        **load_recipe("digits/trades"),
        "phases": [{"name": "one", "epochs": 2}, {"name": "two", "objective": "standard"}],
    }
    recipe = recipe_from(tree)
    assert isinstance(recipe, Recipe)
    assert [phase.epochs for phase in recipe.phases] == [2, 20]
    assert to_dict(recipe.phases[0].objective)["name"] == "trades"
    assert to_dict(recipe.phases[1].objective) == {"name": "standard", "label_smoothing": 0.0}


def test_threats_accept_the_usual_spellings():
    assert LpBall("Linf", "8/255") == LpBall(norm="inf", eps=8 / 255)
    assert LpBall(2, 0.5) == LpBall("l2", 0.5)
    assert str(LpBall("inf", "8/255")) == "Linf 8/255"
    assert FGSM().step == StepSize(1, of_eps=True)
    for norm, eps in (("3", 1), ("inf", -1), ("inf", 8), ("2", float("nan")), ("inf", "8/0")):
        with pytest.raises(ValidationError):
            LpBall(norm, eps)


def test_recipes_in_the_docs_are_recipes():
    pages = [page.read_text() for page in (ROOT / "docs").glob("*.md")]
    blocks = [yaml.safe_load(block) for page in pages for block in re.findall(r"```yaml\n(.*?)```", page, re.S)]
    recipes = [block for block in blocks if "objective" in block]
    assert recipes
    for recipe in recipes:
        assert recipe_from(recipe).phases


def test_every_kind_of_component_is_listed():
    named = {"data": "data", "analyses": "analysis"}
    listed = {named.get(kind, kind.removesuffix("s")) for kind in KINDS}
    assert set(kinds()) <= listed

"""Objects are their own configuration, and mistakes are reported with path and nearest name."""

import re
from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError
from typer.testing import CliRunner

import robustvit.training  # noqa: F401 - registers everything
from robustvit.attacks import FGSM, PGD, Restarts
from robustvit.attacks.ascent import StepSize, parse_step_size
from robustvit.cli.listing import OTHERS, component_kinds
from robustvit.cli.main import app
from robustvit.core.component import (
    _REGISTRY,
    build,
    component,
    explain,
    kinds,
    registered,
    to_dict,
)
from robustvit.core.config import apply_overrides, follow_aliases, load_recipe, shipped_recipes, shipped_sweeps
from robustvit.core.errors import UserError
from robustvit.core.numbers import format_fraction, parse_number
from robustvit.core.recipe_info import RecipeInfo, info_of
from robustvit.threats import LpBall
from robustvit.training import Recipe, recipe_from
from robustvit.training.base_recipe import any_recipe

ROOT = Path(__file__).parents[1]
NEEDS = {
    "arrays": {"path": "x.npz"},
    "folder": {"path": "x"},
    "generated": {"path": "x.npz"},
    "attention_scaling": {"inner": "pgd"},
    "restarts": {"inner": "pgd"},
    "ensemble": {"attacks": ["fgsm", {"name": "pgd", "steps": 3}]},
    "through_head": {"inner": "pgd", "head": "acc"},
    "low_precision": {"inner": "pgd"},
    "from_surrogate": {"inner": "pgd", "surrogate": __file__},  # read only when it attacks
    "shards": {"path": "x-*.tar"},
    "attacked": {"threat": {"norm": "inf", "eps": "8/255"}},
    "attention_scaled": {"inner": "pgd-20"},
    "control": {"of": "pgd-20"},
    "bf16_first": {"of": "pgd-20"},
    "single": {"attack": "pgd"},
    "transfer": {"surrogate": __file__},
    "transfer-matrix": {"threat": {"norm": "inf", "eps": "8/255"}, "models": [__file__]},
    **{f"imagenet-{name}": {"path": "x"} for name in ("a", "r", "sketch", "v2")},
    "cue-conflict": {"path": "x"},
    "shift": {"path": "x"},
}


def needs(kind: str, name: str) -> dict:
    return {} if kind in ("event", "adapters") else NEEDS.get(name, {})


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


def test_several_parents_are_merged_in_order(tmp_path):
    (tmp_path / "model.yaml").write_text("model: {name: a, depth: 2}\nthreat: {norm: inf, eps: 1}\nabout: a model\n")
    (tmp_path / "data.yaml").write_text("data: digits\nthreat: {eps: 2}\nmodel: {width: 3}\nexpect: [1]\n")
    (tmp_path / "mine.yaml").write_text("extends: [model.yaml, data.yaml]\nname: mine\nmodel: {depth: 4}\n")
    (tmp_path / "other.yaml").write_text("extends: [data.yaml, model.yaml]\nmodel: {name: b}\n")
    assert load_recipe(tmp_path / "mine.yaml") == {
        "name": "mine",
        "model": {"name": "a", "depth": 4, "width": 3},
        "data": "digits",
        "threat": {"norm": "inf", "eps": 2},
    }
    assert load_recipe(tmp_path / "other.yaml") == {
        "model": {"name": "b"},
        "data": "digits",
        "threat": {"norm": "inf", "eps": 1},
    }


VARIANTS = """
extends: parts.yaml
data: digits
threat: {norm: inf, eps: 1}
needs: {data: the digits}
about: the file, not a recipe
parts:
  small: {model: {depth: 1}}
  l2: {threat: {norm: "2"}}
variants:
  plain:
    extends: small
    about: a plain one
    expect: [{values: {clean: 90}, measured_with: torch}]
  plain_l2: {extends: [plain, l2], threat: {eps: 3}}
  named: {extends: plain, name: other, needs: {weights: a file}}
  bare:
"""


@pytest.fixture
def variants(tmp_path):
    (tmp_path / "parts.yaml").write_text("seed: 3\nparts: {small: {model: {name: vit}}}\nvariants: {unseen: {}}\n")
    (tmp_path / "my_study.yaml").write_text(VARIANTS)
    return tmp_path / "my_study.yaml"


def test_a_file_may_hold_several_recipes(variants):
    shared = {"seed": 3, "data": "digits"}
    assert load_recipe(f"{variants}:bare") == {
        **shared,
        "name": "my-study-bare",
        "threat": {"norm": "inf", "eps": 1},
        "needs": {"data": "the digits"},
    }
    assert load_recipe(f"{variants}:plain_l2") == {
        **shared,
        "name": "my-study-plain-l2",
        "threat": {"norm": "2", "eps": 3},
        "model": {"name": "vit", "depth": 1},
        "needs": {"data": "the digits"},
    }
    named = load_recipe(f"{variants}:named")
    assert named["name"] == "other"
    assert info_of(named) == RecipeInfo(needs={"data": "the digits", "weights": "a file"})
    assert info_of(load_recipe(f"{variants}:plain")).headline == "ours: 90 % clean"
    (variants.parent / "child.yaml").write_text("extends: my_study.yaml:plain\nname: child\n")
    assert load_recipe(variants.parent / "child.yaml") == {
        **shared,
        "name": "child",
        "threat": {"norm": "inf", "eps": 1},
        "model": {"name": "vit", "depth": 1},
        "needs": {"data": "the digits"},
    }


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        ("variants: {big: {}}", "mine.yaml", r"mine.yaml: holds several recipes; choose one, such as .*mine.yaml:big"),
        ("variants: {big: {}}", "mine.yaml:bg", r"mine.yaml: no variant 'bg'; did you mean 'big'\?"),
        ("name: x", "mine.yaml:big", r"mine.yaml: no variant 'big'"),
        (
            "variants: {big: {extends: smal}}\nparts: {small: {}}",
            "mine.yaml:big",
            r"'big' extends 'smal', .* 'small'\?",
        ),
        ("variants: {a: {extends: b}, b: {extends: a}}", "mine.yaml:a", r"'a' extends itself \(a -> b -> a\)"),
        ("variants: {a: {}}\nparts: {a: {}}", "mine.yaml:a", r"'a' is a part and a variant"),
        ("variants: [a, b]", "mine.yaml:a", r"mine.yaml: variants: a map of names"),
        ("variants: {a: 3}", "mine.yaml:a", r"mine.yaml: variants: a map of names"),
        ("extends: 3", "mine.yaml", r"mine.yaml: extends: a name or a list of names, not 3"),
        ("extends: [digits/trades, {}]", "mine.yaml", r"mine.yaml: extends: a name or a list"),
        ("extends: [digits/trads]", "mine.yaml", r"mine.yaml: extends: no recipe 'digits/trads'.*'digits/trades'\?"),
        ("extends: mine.yaml:a\nvariants: {a: {}}", "mine.yaml:a", r"mine.yaml: extends itself"),
    ],
)
def test_mistakes_in_parents_and_variants_are_reported_in_one_line(tmp_path, text, name, message):
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(UserError, match=message) as caught:
        load_recipe(tmp_path / name)
    assert "\n" not in str(caught.value)


def test_aliases_lead_to_recipes():
    assert load_recipe("digits/pgd-at") == load_recipe("digits/pgd_at")
    assert follow_aliases("a", {"a": "b", "b": "c"}) == "c"
    with pytest.raises(UserError, match=r"no recipe 'a': its alias leads back to itself \(a -> b -> a\)"):
        follow_aliases("a", {"a": "b", "b": "a"})


def test_numbers_are_a_papers_or_our_own():
    number = {"table": "Table 1", "row": "ViT", "values": {"clean": 90, "fgsm": 4}}
    mine = {"name": "mine", "paper": "A Paper", "expect": [number]}
    first, second = info_of(mine).expect
    assert (first.paper, first.table, first.row, first.suite, first.value) == ("A Paper", "Table 1", "ViT", "clean", 90)
    assert (second.suite, second.value) == ("fgsm", 4)
    assert info_of(mine).headline == "paper: 90 % clean, 4 % fgsm"
    for wrong in ({"suite": "clean", "value": 3}, {"suite": "clean", "value": 3, "paper": "x", "measured_with": "y"}):
        with pytest.raises(UserError, match="recipe.info.expect.0: a number is either from a paper"):
            recipe_from({**load_recipe("digits/trades"), "paper": "", "expect": [wrong]})


@pytest.mark.parametrize("name", shipped_recipes())
def test_every_recipe_reads_back_from_what_a_run_stores(name):
    recipe = any_recipe(name)
    assert any_recipe(yaml.safe_load(yaml.safe_dump(recipe.to_dict()))) == recipe


def test_recipe_mistakes_are_reported_where_the_user_wrote_them():
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


def test_variants_in_the_docs_are_recipes(tmp_path):
    blocks = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "training.md").read_text(), re.S)
    (text,) = [block for block in blocks if "variants:" in block]
    (tmp_path / "mine.yaml").write_text(text)
    (tmp_path / "my_model.yaml").write_text("model: {settings: {embed_dim: 32}}\n")
    recipe = recipe_from(f"{tmp_path / 'mine.yaml'}:small_l2")
    assert (recipe.name, recipe.threat, recipe.info.about) == ("mine-small-l2", LpBall("2", 1.0), "One block in L2")
    assert {"depth": 1, "embed_dim": 32}.items() <= recipe.model.settings.items()
    assert recipe_from(f"{tmp_path / 'mine.yaml'}:small").threat == LpBall("inf", 0.1)


def test_every_kind_of_component_is_listed():
    listed = component_kinds()
    assert set(kinds()) == set(listed.values())
    assert set(listed) & set(OTHERS) == {"suites"}, "which also have short forms"
    named = {"adapters": "adapters", "analyses": "analysis", "attacks": "attack", "data": "data"}
    assert named.items() <= listed.items()


def test_a_kind_of_a_plug_in_is_listed_by_itself():
    try:

        @component("strategy", "greedy")
        class Greedy:
            """Takes the first one."""

        assert "  greedy  Takes the first one." in CliRunner().invoke(app, ["list", "strategies"]).output
    finally:
        _REGISTRY.pop("strategy")


def test_recipes_and_sweeps_are_listed_with_what_to_expect():
    output = CliRunner().invoke(app, ["list", "recipes"]).output.splitlines()
    assert len(output) == len(shipped_recipes())
    (line,) = [line for line in output if line.startswith("  imagenet/xcit_s12_light ")]
    assert line.endswith("at 4/255, the light recipe; paper: 72.34 % clean, 41.78 % autoattack")
    (line,) = [line for line in output if line.startswith("  digits/trades ")]
    assert line.endswith("; ours: 96.7 % clean, 77.5 % pgd-50x2")
    output = CliRunner().invoke(app, ["list", "sweeps"]).output.splitlines()
    assert len(output) == len(shipped_sweeps())
    assert any("70.69 to 71.31 % autoattack" in line for line in output)

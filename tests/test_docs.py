"""What the documentation says can be done."""

import importlib
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch
import yaml

import robustvit as rv
from robustvit.attacks import Search
from robustvit.core.component import _REGISTRY
from robustvit.core.journal import read_rows
from robustvit.core.streams import sample_streams
from robustvit.losses import margin
from robustvit.threats import LpBall

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").glob("*.md"))


def test_every_page_is_in_the_site_and_every_link_leads_somewhere():
    listed = re.findall(r": ([\w-]+\.md)", (ROOT / "mkdocs.yml").read_text())
    assert {page.name for page in PAGES} == set(listed)
    assert yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    for page in [*PAGES, ROOT / "README.md", ROOT / "CONTRIBUTING.md"]:
        for target, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", page.read_text()):
            aim = page.parent / target if target else page
            assert aim.exists(), f"{page.name}: {target}"
            assert not anchor or anchor in anchors(aim), f"{page.name}: {target}#{anchor}"


def anchors(page: Path) -> set[str]:
    """Of its headings, as mkdocs and GitHub name them."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", page.read_text(), flags=re.S), re.M)
    return {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


def test_every_name_of_the_api_page_exists():
    names = re.findall(r"^::: (\S+)$", (ROOT / "docs" / "api.md").read_text(), re.M)
    assert len(names) > 40
    for name in names:
        module, _, attribute = name.rpartition(".")
        assert hasattr(importlib.import_module(module), attribute), name


def test_the_api_page_shows_every_name_of_the_package():
    page = (ROOT / "docs" / "api.md").read_text()
    packages = {"attacks", "objectives"}
    assert {name for name in rv.__all__ if f"heading: rv.{name}," not in page} == packages
    for package in packages:
        assert f"::: robustvit.{package}." in page


@pytest.mark.parametrize("name", ["cli.md", "settings.md", "zoo.md", "claims.md", "../README.md"])
def test_generated_pages_are_those_of_the_code(name):
    """In a process of its own: other tests register components."""
    code = f"import sys; sys.path.insert(0, 'docs'); import reference; print(reference.PAGES['{name}'](), end='')"
    made = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert made == (ROOT / "docs" / name).read_text(), "run python docs/reference.py"


def test_an_installed_package_has_all_files():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    package, patterns = Path(rv.__file__).parent, settings["tool"]["setuptools"]["package-data"]["robustvit"]
    shipped = {path for pattern in patterns for path in package.glob(pattern)}
    files = {path for path in package.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")}
    assert files <= shipped


FUTURE = ("adapters", "heads", "lesion", "lesions")
"""Modules that "What an extension costs" would add."""


def test_every_module_that_the_pages_name_exists():
    package = Path(rv.__file__).parent
    pages = [page.read_text() for page in PAGES] + [(ROOT / "CONTRIBUTING.md").read_text()]
    for name in {name for text in pages for name in re.findall(r"`(\w+/[\w/]+\.py)`", text)}:
        known = (package / name).exists() or (ROOT / name).exists() or Path(name).stem in FUTURE
        assert known, name


@pytest.fixture
def corners():
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "adding-an-attack.md").read_text(), re.S)
    names: dict = {}
    try:
        exec(compile(code, "adding-an-attack.md", "exec"), names)
        yield names["Corners"]
    finally:
        _REGISTRY["attack"].pop("corners", None)


def test_the_attack_of_the_page_is_one(corners, trained, digits):
    x, y = digits[0][:16], digits[1][:16]
    threat = LpBall("inf", 0.1)
    x_adv = corners(tries=8)(trained, x, y, threat, Search(sample_streams(0, range(16))))
    assert threat.contains(x, x_adv).all()
    fewer = corners(tries=2)(trained, x, y, threat, Search(sample_streams(0, range(16))))
    with torch.no_grad():
        assert (margin(trained(x_adv), y) >= margin(trained(fewer), y)).all()
    alone = corners(tries=8)(trained, x[5:6], y[5:6], threat, Search(sample_streams(0, [5])))
    assert torch.equal(alone, x_adv[5:6])


def test_the_components_of_the_page_on_extending_work(extended, trained, digits, tmp_path):
    threat = LpBall("inf", 0.1)
    options = {"images": 24, "quiet": True, "checks": False}
    dark = rv.evaluate(trained, digits, suite="darkness:levels=2", **options)
    assert [one.name for one in dark.conditions] == ["clean", "dark/1", "dark/2"]
    darker = rv.evaluate(trained, digits, suite={"name": "corruptions", "which": ["darkness"]}, **options)
    assert darker.measure("group_own_accuracy").value == darker.headline.value < darker.clean_accuracy + 0.1
    universal = {"run": tmp_path / "attacked", "suite": "universal_sign:tries=4", "threat": threat}
    first, again = (rv.evaluate(trained, digits, **universal, **options) for _ in range(2))
    assert first.details["attacks"][0]["chosen"] in range(4)
    assert again.to_dict() == first.to_dict()
    strong = rv.evaluate(trained, digits, suite="strong-2", threat=threat, **{**options, "images": 4})
    assert [stage.name for stage in strong.stages] == ["pgd-2x5", "square"]
    (finding,) = rv.analyze(trained, digits, what={"name": "confidence", "threshold": 0.5}, images=24, quiet=True)
    assert finding.tables[0].rows[0][0] == "confident"
    changes = ["epochs=2", "objective={name: logit_pairing, attack: fgsm}", "events=[{name: shrink, every: 1}]"]
    run = rv.train("digits/trades", run=tmp_path / "trained", overrides=changes, quiet=True)
    rows = read_rows(run.metrics.path)
    assert [row["values"] for row in rows if row["kind"] == "event"] == [{"factor": 0.9}]
    assert all("pairing" in row for row in rows if row["kind"] == "train")
    (tmp_path / "line.yaml").write_text(extended["yaml"])
    line = rv.train(tmp_path / "line.yaml", run=tmp_path / "line", quiet=True)
    losses = [row["loss"] for row in read_rows(line.metrics.path) if row["kind"] == "train"]
    assert losses[-1] < losses[0]


def test_the_conditions_of_the_page_on_evaluating_are_measured(trained, digits, capsys):
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "evaluating.md").read_text(), re.S)
    exec(compile(code, "evaluating.md", "exec"), {"model": trained, "data": (digits[0][:16], digits[1][:16])})
    assert "('flipped', " in capsys.readouterr().out


def test_every_setting_has_a_meaning():
    page = (ROOT / "docs" / "settings.md").read_text()
    assert "Condition(" not in page, "a default is written as YAML writes it"
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| `")]
    assert len(rows) > 100
    assert not [row[0] for row in rows if row[-1].strip(" |") == ""]

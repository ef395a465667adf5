"""What the documentation says can be done."""

import re
from pathlib import Path

import pytest
import torch
import yaml

from robustvit.core.component import _REGISTRY
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
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


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
    x_adv = corners(tries=8)(trained, x, y, threat, random=sample_streams(0, range(16)))
    assert threat.contains(x, x_adv).all()
    fewer = corners(tries=2)(trained, x, y, threat, random=sample_streams(0, range(16)))
    with torch.no_grad():
        assert (margin(trained(x_adv), y) >= margin(trained(fewer), y)).all()
    alone = corners(tries=8)(trained, x[5:6], y[5:6], threat, random=sample_streams(0, [5]))
    assert torch.equal(alone, x_adv[5:6])

"""The galleries of the docs: analyses in short form; pages without a browser."""

import importlib.util
import io
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

ROOT = Path(__file__).parents[1]


def script(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    made = importlib.util.module_from_spec(spec)
    sys.modules[name] = made  # where dataclasses look for their module
    spec.loader.exec_module(made)
    return made


def test_the_gallery_is_made_of_the_zoo(tmp_path, capsys):
    gallery = script("gallery")
    options = ["zoo:speedrun", "--data", "cifar10_sample", "--run", tmp_path / "run", "--out", tmp_path, "--short"]
    gallery.main(list(map(str, options)))
    assert capsys.readouterr().out.startswith("2 pictures")
    page = (tmp_path / "gallery.md").read_text()
    shown = re.findall(r"!\[.*\]\((.*)\)", page)
    assert len(shown) == 2
    assert all((tmp_path / path).read_text().startswith("<svg") for path in shown)
    assert "--what eigen_cam --images 8 -o eigen_cam.shown=2" in page


def test_the_gallery_that_is_shown_is_whole_and_small():
    page = (ROOT / "docs" / "gallery.md").read_text()
    shown = re.findall(r"!\[.*\]\((.*)\)", page)
    files = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs" / "images" / "gallery").iterdir()}
    assert len(shown) > 20
    assert set(shown) == files
    assert sum((ROOT / "docs" / path).stat().st_size for path in files) < 1_500_000


def test_the_gallery_of_pages_shows_every_page_with_its_command():
    pages = script("gallery_pages")
    assert (ROOT / "docs" / pages.PAGE).read_text() == pages.page(), "run python docs/gallery_pages.py --text"
    shown = re.findall(r"!\[.*\]\((.*)\)", pages.page())
    files = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs" / pages.PICTURES).iterdir()}
    assert set(shown) == files
    for path in files:
        with Image.open(ROOT / "docs" / path) as picture:
            assert (picture.width, picture.mode) == (pages.WIDTH, "P")
        assert (ROOT / "docs" / path).stat().st_size <= pages.LARGEST


def test_a_screenshot_keeps_its_pixels_where_it_has_few_colors():
    pages = script("gallery_pages")
    levels = np.random.default_rng(0).integers(0, 4, (30, 40, 3), dtype=np.uint8) * 85
    file = io.BytesIO()
    Image.fromarray(levels).save(file, "PNG")
    made = pages.compressed(file.getvalue(), "name")
    shown = np.asarray(Image.open(io.BytesIO(made)).convert("RGB"))
    assert (shown[1:-1, 1:-1] == levels[1:-1, 1:-1]).all()
    assert (shown[0] == 0xAA).all()
    pages.LARGEST = len(made) - 1
    with pytest.raises(SystemExit, match="name: .* bytes, more than .*; show less of the page"):
        pages.compressed(file.getvalue(), "name")

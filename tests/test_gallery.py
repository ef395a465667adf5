"""The gallery of the docs, in its short form."""

import importlib.util
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_gallery_is_made_of_the_zoo(tmp_path, capsys):
    spec = importlib.util.spec_from_file_location("gallery", ROOT / "docs" / "gallery.py")
    gallery = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(gallery)
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

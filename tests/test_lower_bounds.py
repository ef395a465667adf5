"""The lowest versions that pyproject.toml allows are there to be had, and the package works with them."""

import os
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
AREAS = ("threats", "config", "files", "models", "attacks", "augment", "data", "saved", "fast", "report", "bad_input")
"""Tests that use every dependency, and no other package than pytest."""


def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def lower_bounds() -> dict[str, str]:
    bounds = {}
    for text in project()["dependencies"]:
        match = re.fullmatch(r"([A-Za-z0-9_.-]+)>=([0-9.]+)", text)
        assert match, f"{text}: NAME>=VERSION is expected"
        bounds[match[1]] = match[2]
    return bounds


def test_every_dependency_has_a_lower_bound_of_its_own():
    assert {"torch", "timm", "numpy"} <= set(lower_bounds())
    assert len(lower_bounds()) == len(project()["dependencies"])


def run(*command: str | Path) -> str:
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        list(map(str, command)),
        cwd=ROOT,
        env={**environment, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, "\n".join(done.stdout.splitlines()[-60:])
    return done.stdout


@pytest.mark.slow
def test_the_lowest_versions_work():
    """Downloads some 3 GB: torch comes with its CUDA packages."""
    lowest = project()["requires-python"].removeprefix(">=")
    if ".".join(map(str, sys.version_info[:2])) != lowest:
        pytest.skip(f"the lowest versions of the dependencies are built for Python {lowest}")
    with tempfile.TemporaryDirectory() as folder:  # pytest would keep three of them
        python, constraints = Path(folder) / "venv" / "bin" / "python", Path(folder) / "lowest.txt"
        constraints.write_text("".join(f"{name}=={version}\n" for name, version in lower_bounds().items()))
        run(sys.executable, "-m", "venv", python.parents[1])
        install = (python, "-m", "pip", "install", "--quiet", "--no-cache-dir", "--constraint", constraints)
        run(*install, "--editable", ROOT, "pytest")
        files = [ROOT / "tests" / f"test_{area}.py" for area in AREAS]
        print(run(python, "-m", "pytest", "-p", "no:cacheprovider", *files))

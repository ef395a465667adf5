"""The project as a project: one version everywhere, and a wheel that has all it needs."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_one_version_and_date_everywhere():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    version, date = re.search(
        r"^## (\d+\.\d+\.\d+) \((\d{4}-\d\d-\d\d)\)$", (ROOT / "CHANGELOG.md").read_text(), re.M
    ).groups()
    assert version == PROJECT["version"] == citation["version"]
    assert date == str(citation["date-released"])
    assert citation["license"] == PROJECT["license"]
    assert {"cff-version", "message", "title", "authors"} <= set(citation)


def test_workflows_and_issue_templates_are_whole():
    for path in (ROOT / ".github").rglob("*.yml"):
        content = yaml.safe_load(path.read_text())
        if path.parent.name == "workflows":
            targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))
            commands = [step.get("run", "") for job in content["jobs"].values() for step in job["steps"]]
            assert {command.split()[1] for command in commands if command.startswith("make ")} <= targets
        elif path.name != "config.yml":
            assert {"name", "description", "body"} <= set(content), path
            assert all(part["attributes"]["label"] for part in content["body"]), path


HOSTS = {"127.0.0.1", "github.com", "www.apache.org", "www.cs.toronto.edu", "www.w3.org", "zensical.org"}
"""Of everything that the project links to; no package index is among them, as users choose theirs."""
RESERVED = (".example", ".invalid")


def test_only_known_hosts_are_named():
    folders = ("docs", "src", "tests", "benchmarks", ".github", ".ci")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()]
    files += [path for path in ROOT.iterdir() if path.is_file()]
    binary = (".pyc", ".png", ".safetensors", ".npz")
    texts = {path: path.read_text(errors="ignore") for path in files if path.suffix not in binary}
    assert ROOT / "docs" / "index.md" in texts
    for path, text in texts.items():
        for host in re.findall(r"https?://([\w.-]+)", text):
            assert host in HOSTS or host.endswith(RESERVED), f"{path}: {host}"


@pytest.mark.slow
def test_a_wheel_works_in_an_empty_environment(tmp_path):
    """Dependencies are seen from here; the package itself only from the wheel."""
    pytest.importorskip("setuptools", minversion="77", reason="the build needs setuptools 77")
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}

    def run(*command):
        done = subprocess.run([*map(str, command)], cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, f"{command}: {done.stdout} {done.stderr}"
        return done.stdout

    source = tmp_path / "source"  # a copy, as a build leaves files behind
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    flags = ["--no-deps", "--no-build-isolation", "--disable-pip-version-check", "--no-index"]
    run(sys.executable, "-m", "pip", "wheel", *flags, "--wheel-dir", tmp_path / "dist", source)
    (wheel,) = (tmp_path / "dist").glob("robustvit-*.whl")
    run(sys.executable, "-m", "venv", tmp_path / "empty")
    python = tmp_path / "empty" / "bin" / "python"
    run(python, "-m", "pip", "install", "--no-deps", "--no-index", "--disable-pip-version-check", wheel)
    (own,) = (tmp_path / "empty").glob("lib/*/site-packages")
    (own / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    where = run(python, "-c", "import robustvit; print(robustvit.__file__)").strip()
    assert Path(where).is_relative_to(own)
    robustvit = tmp_path / "empty" / "bin" / "robustvit"
    assert PROJECT["version"] in run(robustvit, "--version")
    assert "digits/trades" in run(robustvit, "list", "recipes")
    train = ["train", "digits/standard", "--run", "runs/mine", "-o", "epochs=1"]
    run(robustvit, *train)
    run(robustvit, "evaluate", "runs/mine", "--suite", "fgsm", "--images", "16")
    run(robustvit, "report", "runs/mine", "--out", "report.html")
    assert "</html>" in (tmp_path / "report.html").read_text()
    run(robustvit, "push", "zoo:speedrun", "me/speedrun", "--dry-run", "share")
    run(
        robustvit,
        "evaluate",
        "zoo:speedrun",
        "--data",
        "cifar10_sample",
        "--suite",
        "fgsm",
        "--eps",
        "8/255",
        "--images",
        "8",
    )

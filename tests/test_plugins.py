"""Components of other packages, and a registry that needs no assert."""

import os
import subprocess
import sys

import pytest

from robustvit.attacks import PGD
from robustvit.core.component import component

ATTACK = """
from robustvit.core.component import component, registered

assert registered("attack")

@component("attack", "{name}")
class Foreign:
    \"\"\"An attack of another package.\"\"\"

    def __call__(self, model, x, y, threat, search=None):
        return x
"""


def distribution(root, name: str, code: str, entry: str) -> None:
    (root / f"{name}.py").write_text(code)
    info = root / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[robustvit.plugins]\n{name} = {entry}\n")


@pytest.fixture
def run(tmp_path):
    distribution(tmp_path, "plugin_one", ATTACK.format(name="foreign"), "plugin_one")
    distribution(tmp_path, "plugin_two", ATTACK.format(name="pgd"), "plugin_two")
    distribution(tmp_path, "plugin_three", "import does_not_exist", "plugin_three:register")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])

    def call(*arguments: str):
        environment = {**os.environ, "PYTHONPATH": path}
        return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=environment)

    return call


def test_plugins_are_listed_and_broken_ones_named_also_without_asserts(run):
    done = run("-O", "-m", "robustvit", "list", "attacks")
    assert done.returncode == 0, done.stderr
    listed = [line.split()[0] for line in done.stdout.splitlines()]
    assert {"apgd", "foreign", "pgd", "restarts"} <= set(listed)
    assert "An attack of another package." in done.stdout
    first, second = sorted(line for line in done.stderr.splitlines() if line)
    assert first.startswith("warning: plugin 'plugin_three' of package 'plugin_three': ModuleNotFoundError: No module")
    assert second.startswith("warning: plugin 'plugin_two' of package 'plugin_two': ValueError: attack 'pgd' is regist")


def test_plugins_are_loaded_when_a_name_is_asked_for(run):
    done = run(
        "-c",
        "import sys, robustvit.evaluation, robustvit.training\n"
        "from robustvit.core.component import build\n"
        "build('attack', {'name': 'restarts', 'inner': 'pgd'})\n"
        "print('plugin_one' in sys.modules)\n"
        "print(build('attack', {'name': 'restarts', 'inner': 'foreign'}).inner.name, 'plugin_one' in sys.modules)\n",
    )
    assert done.stdout.split() == ["False", "foreign", "True"], done.stderr


def test_a_name_is_registered_once():
    with pytest.raises(ValueError, match="'pgd' is registered twice: in robustvit.attacks.ascent and test_plugins"):

        @component("attack", PGD.name)
        class Other:
            """Another."""

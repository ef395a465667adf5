"""Which package may import which: the table of docs/architecture.md."""

import ast
import re
from pathlib import Path

import pytest

import robustvit

ROOT = Path(robustvit.__file__).parent
BELOW_ATTACKS = {"core", "threats", "losses", "models"}
MAY_IMPORT = {
    "core": set(),
    "threats": {"core"},
    "losses": {"core"},
    "models": {"core"},
    "data": {"core"},
    "attacks": BELOW_ATTACKS,
    "objectives": BELOW_ATTACKS | {"attacks"},
    "evaluation": BELOW_ATTACKS | {"attacks", "data"},
    "training": BELOW_ATTACKS | {"attacks", "data", "objectives", "evaluation"},
    "synthesis": BELOW_ATTACKS | {"data", "evaluation", "training"},
    "planning": BELOW_ATTACKS | {"attacks", "data", "objectives", "evaluation", "training"},
    "analysis": BELOW_ATTACKS | {"attacks", "data", "evaluation", "reporting"},
    "reporting": {"core"},
    "sharing": {"core", "models", "objectives"},
    "cards": BELOW_ATTACKS | {"attacks", "data", "evaluation", "reporting"},
    "playground": BELOW_ATTACKS | {"attacks", "data", "evaluation", "analysis", "reporting"},
    "reproduce": BELOW_ATTACKS
    | {"attacks", "data", "objectives", "evaluation", "analysis", "training", "planning", "reporting"},
}
FILES = sorted(path for path in ROOT.rglob("*.py") if path.parent != ROOT or path.stem in MAY_IMPORT)


def package_of(path: Path) -> str:
    return path.relative_to(ROOT).with_suffix("").parts[0]


def imported(path: Path) -> set[str]:
    """The packages of robustvit that a file imports, also inside its functions."""
    imports = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names = [node.module or ""]
            if node.module == "robustvit":
                names = [f"robustvit.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        imports |= {name.split(".")[1] for name in names if name.startswith("robustvit.")}
    return imports


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_file_imports_only_what_its_package_may(path):
    if package_of(path) == "cli":
        unknown = imported(path) - set(MAY_IMPORT) - {"cli", "__version__"}
        assert not unknown, f"the command line imports packages that the table lacks: {unknown}"
        return
    forbidden = imported(path) - MAY_IMPORT[package_of(path)] - {package_of(path)}
    assert not forbidden, f"{package_of(path)} may not import {forbidden}"


def test_every_package_is_in_the_table():
    packages = {path.name for path in ROOT.iterdir() if path.is_dir() and (path / "__init__.py").exists()}
    assert packages == set(MAY_IMPORT) - {"threats", "losses"} | {"cli"}


def test_the_report_and_the_command_line_need_no_torch():
    import subprocess
    import sys

    for module, absent in (("robustvit.cli.main", {"torch", "numpy", "scipy"}), ("robustvit.reporting", {"torch"})):
        code = f"import sys, {module}; print({absent!r} & set(sys.modules))"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout == "set()\n"


OWN = ("attention_", "factor_search", "factors_file")
"""How the modules of adaptive attention scaling and of the attention probe are called."""
NAMES = re.compile(r"attention.?scal|attention_?factor|\baas\b|factor_?search|factors_file", re.IGNORECASE)


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_only_attention_scalings_own_modules_name_it(path):
    """One paper is one set of modules and one import line in each package; everything else asks attacks by hooks."""
    if path.stem.startswith(OWN) or path.name in ("papers.py", "input_gradients.py"):  # tables of papers; it scales
        return
    lines = [line for line in path.read_text().splitlines() if NAMES.search(line)]
    if path.name == "__init__.py":
        lines = [line for line in lines if not line.startswith(("from ", '    "', "__all__"))]
    assert not lines

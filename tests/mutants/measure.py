"""Which tests run a line: measured once, and used to choose the tests of an entry.

A plugin of pytest that follows each test with coverage. Lines are named by their text and the function around them, so
that a measurement stays useful while the files change.
"""

import ast
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.mutants.entries import ROOT, SOURCE, Entry, locate, scope_of_lines

MEASURED = ROOT / ".stamps" / "mutants-coverage"
LEFT_OUT = {"docs", "layers", "real_images", "recipes_golden", "report", "report_browser", "stories", "verdicts"}
"""Whose tests run nearly everything, slowly, or none of these lines."""
MOST, BUDGET = 120, 30.0
"""How many tests an entry gets at first, and seconds for all of them."""
FEW = 3
"""With fewer tests the line was perhaps run at import alone, inside whichever test came first."""


class FollowTests:
    """Which lines each test runs, and how long it takes."""

    def __init__(self, database: Path) -> None:
        import coverage

        self.coverage = coverage.Coverage(data_file=str(database), source=[str(ROOT / SOURCE)], config_file=False)
        self.seconds: dict[str, float] = {}
        self.path = database
        self.coverage.start()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[Any]:
        self.coverage.switch_context(item.nodeid)
        begin = time.perf_counter()
        result = yield
        self.seconds[item.nodeid] = time.perf_counter() - begin
        self.coverage.switch_context("")
        return result

    def pytest_sessionfinish(self) -> None:
        self.coverage.stop()
        data = self.coverage.get_data()
        lines: dict[str, list[str]] = {}
        for name in data.measured_files():
            path = Path(name)
            text, scopes = path.read_text().splitlines(), scope_of_lines(path.read_text())
            for number, tests in data.contexts_by_lineno(name).items():
                place = f"{path.relative_to(ROOT / SOURCE)}:{scopes[number - 1]}:{text[number - 1].strip()}"
                lines[place] = sorted({*lines.get(place, []), *filter(None, tests)})
        self.path.with_suffix(".json").write_text(json.dumps({"seconds": self.seconds, "lines": lines}))


def measure() -> None:
    """Every fast test, file after file; about half an hour. Files whose measurement is newer than they are stay."""
    MEASURED.mkdir(parents=True, exist_ok=True)
    for file in sorted((ROOT / "tests").glob("test_*.py")):
        name = file.stem.removeprefix("test_")
        done = MEASURED / f"{name}.json"
        if name in LEFT_OUT or (done.exists() and done.stat().st_mtime > file.stat().st_mtime):
            continue
        print(f"measuring {file.name}", flush=True)
        paths = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
        code = (
            "import sys, pytest; from pathlib import Path; from tests.mutants.measure import FollowTests; "
            "sys.exit(pytest.main(sys.argv[2:], plugins=[FollowTests(Path(sys.argv[1]))]))"
        )
        command = [sys.executable, "-c", code, str(MEASURED / f"{name}.db"), "-p", "no:cacheprovider", "-n", "0"]
        environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
        subprocess.run([*command, str(file)], cwd=ROOT, check=False, stdout=subprocess.DEVNULL, env=environment)
        if not done.exists():
            sys.exit(f"{file.name} could not be measured; the error is above")


@dataclass
class Measured:
    """What all test files have shown."""

    seconds: dict[str, float]
    lines: dict[str, set[str]]

    @classmethod
    def read(cls) -> "Measured":
        seconds: dict[str, float] = {}
        lines: dict[str, set[str]] = {}
        for path in sorted(MEASURED.glob("*.json")):
            part = json.loads(path.read_text())
            seconds |= part["seconds"]
            for place, tests in part["lines"].items():
                lines.setdefault(place, set()).update(tests)
        return cls(seconds, lines)

    def concerning(self, entry: Entry) -> tuple[str, ...]:
        """The fastest tests that run the line, before others that concern it.

        A line that runs at import, such as the default of a setting, is taken to concern the tests that run the rest
        of its class or function; a constant of a module, those that name it or run lines that name what is made of it.
        """
        direct = self.lines.get(f"{entry.file}:{entry.within}:{entry.old}", set())
        at_import = not entry.within or entry.within.split(".")[-1].lstrip("_")[:1].isupper()
        tests = direct | self._indirectly(entry) if at_import or len(direct) < FEW else direct
        chosen, spent = list[str](), 0.0
        for test in sorted(tests, key=lambda test: (at_import or test not in direct, self.seconds[test])):
            if len(chosen) < MOST and spent + self.seconds[test] < BUDGET:
                chosen.append(test)
                spent += self.seconds[test]
        return tuple(chosen)

    def _indirectly(self, entry: Entry) -> set[str]:
        names = set() if entry.within else constants_made_of(entry, (ROOT / SOURCE / entry.file).read_text())
        named = re.compile(rf"\b({'|'.join(map(re.escape, names))})\b") if names else None
        found: set[str] = set()
        for place, tests in self.lines.items():
            file, within, text = place.split(":", 2)
            near = file == entry.file and within.startswith(entry.within)
            if near if named is None else within and named.search(text):
                found |= tests
        return found | {test for test in self.seconds if names & _names_in(test)}


def _names_in(test: str) -> set[str]:
    """What the function of a test names: it may look at a constant without running any line of the sources."""
    file, _, function = test.partition("::")
    return _names_by_function(ROOT / file).get(function.split("[")[0], set())


@cache
def _names_by_function(path: Path) -> dict[str, set[str]]:
    tree = ast.parse(path.read_text()) if path.is_file() else ast.Module([], [])
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    return {one.name: {part.id for part in ast.walk(one) if isinstance(part, ast.Name)} for one in functions}


def constants_made_of(entry: Entry, source: str) -> set[str]:
    """The constant of the module whose value the line is part of, and those of the module that are made of it."""
    line, names = locate(entry, source) + 1, set[str]()
    assignments = [node for node in ast.parse(source).body if isinstance(node, ast.Assign | ast.AnnAssign)]
    for _ in assignments:  # each pass finds at least one more, or all are found
        for node in assignments:
            used = {part.id for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load)}
            if node.lineno <= line <= (node.end_lineno or line) or used & names:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names |= {part.id for one in targets for part in ast.walk(one) if isinstance(part, ast.Name)}
    return names

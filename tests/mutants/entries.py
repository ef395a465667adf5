"""The list of changes: how an entry is written, read and found in the sources."""

import ast
import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
SOURCE = "src/robustvit"
LIST = Path(__file__).with_name("list.yaml")


class StaleError(Exception):
    """An entry whose line is gone, or not the only one of its kind."""


@dataclass(frozen=True)
class Entry:
    """One line of one file with another meaning."""

    file: str
    """Below src/robustvit."""
    within: str
    """The class and function that hold the line, such as `LpBall.contains`; empty: the module."""
    old: str
    """The line without its indentation."""
    new: str
    tests: tuple[str, ...] = ()
    """Those that concern it, by their pytest ids; the one that catches it comes first."""
    about: str = ""
    """What a change made by hand is meant to break; empty: drawn by the seed."""
    equivalent: str = ""
    """Why nobody can observe the change; such an entry is neither run nor counted."""

    @property
    def key(self) -> str:
        """What identifies the change, whatever the rest of the file looks like."""
        return f"{self.file}:{self.within}:{self.old}:{self.new}"

    @property
    def id(self) -> str:
        return hashlib.sha256(self.key.encode()).hexdigest()[:8]

    @property
    def package(self) -> str:
        return self.file.split("/")[0]

    def __str__(self) -> str:
        about = f"  ({self.about})" if self.about else ""
        return f"{self.id}  {self.file}  {self.within}{about}\n    - {self.old}\n    + {self.new}"


@dataclass
class MutantList:
    """The file: how the changes were drawn, and the changes."""

    seed: int
    drawn: int
    """How many, in addition to those made by hand."""
    entries: list[Entry] = field(default_factory=list)


HEADER = """\
# Changes that the tests must notice; `make mutants` runs them, CONTRIBUTING.md says how to add one.
# Entries with `about` were made by hand. The others are the `drawn` first of all candidates of draw.py in the order of
# sha256("<seed>:<file>:<within>:<old>:<new>"), one for each line: the order depends on the seed and the line alone, so
# that an edit elsewhere changes nothing, and what is gone is replaced by the next in line.
"""


def read_list(path: Path = LIST) -> MutantList:
    tree = yaml.load(path.read_text(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    entries = [Entry(**{**entry, "tests": tuple(entry.get("tests", ()))}) for entry in tree["entries"]]
    return MutantList(tree["seed"], tree["drawn"], entries)


def write_list(mutants: MutantList, path: Path = LIST) -> None:
    entries = [_plain(entry) for entry in mutants.entries]
    tree = {"seed": mutants.seed, "drawn": mutants.drawn, "entries": entries}
    path.write_text(HEADER + yaml.safe_dump(tree, sort_keys=False, width=10_000, allow_unicode=True))


def _plain(entry: Entry) -> dict[str, Any]:
    plain = {name: value for name, value in vars(entry).items() if value or name == "within"}
    return {**plain, "tests": list(entry.tests)} if entry.tests else plain


def scopes(tree: ast.Module) -> Iterator[tuple[str, int, int]]:
    """(qualified name, first line, last line) of the module, its classes and functions; the inner after the outer."""

    def inside(node: ast.AST, name: str) -> Iterator[tuple[str, int, int]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
                inner = f"{name}.{child.name}".lstrip(".")
                yield inner, child.lineno, child.end_lineno or child.lineno
                yield from inside(child, inner)
            else:
                yield from inside(child, name)

    yield "", 1, 10**9
    yield from inside(tree, "")


def scope_of_lines(source: str) -> list[str]:
    """The innermost scope of each line."""
    names = [""] * len(source.splitlines())
    for name, first, last in scopes(ast.parse(source)):
        for line in range(first - 1, min(last, len(names))):
            names[line] = name
    return names


def locate(entry: Entry, source: str) -> int:
    """The number of its line, from 0."""
    names = scope_of_lines(source)
    lines = source.splitlines()
    found = [i for i, line in enumerate(lines) if line.strip() == entry.old and names[i] == entry.within]
    if len(found) != 1:
        what = "is gone" if not found else f"occurs {len(found)} times"
        raise StaleError(f"{entry.id}: {entry.file}: this line {what} in {entry.within or 'the module'}: {entry.old}")
    return found[0]


def changed(entry: Entry, source: str) -> str:
    """The file with the entry's change."""
    number, lines = locate(entry, source), source.splitlines(keepends=True)
    line = lines[number]
    lines[number] = line.replace(entry.old, entry.new)
    return "".join(lines)


def stale(entries: Iterable[Entry], root: Path = ROOT) -> dict[str, str]:
    """By id, what is wrong with entries that can't be located."""
    problems = {}
    for entry in entries:
        try:
            path = root / SOURCE / entry.file
            locate(entry, path.read_text() if path.is_file() else "")
        except StaleError as problem:
            problems[entry.id] = str(problem)
    return problems


def existing(tests: Iterable[str], root: Path = ROOT) -> tuple[str, ...]:
    """Those whose function is still in its file."""
    return tuple(test for test in tests if test.split("::")[1].split("[")[0] in _functions(root / test.split("::")[0]))


@cache
def _functions(path: Path) -> set[str]:
    tree = ast.parse(path.read_text()) if path.is_file() else ast.Module([], [])
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}

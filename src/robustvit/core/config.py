"""Recipes as YAML: found by name or path, `extends:` merged, `-o path.to.setting=value` applied, every mistake told."""

from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError

from robustvit.core.component import explain
from robustvit.core.errors import UserError, first_line, nearest
from robustvit.core.files import is_file

Tree = dict[str, Any]


def shipped_recipes() -> dict[str, Path]:
    """The recipes inside the package, by name such as `digits/trades`; parts of them begin with an underscore."""
    return {name: path for name, path in _shipped().items() if not name.startswith("sweeps/")}


def shipped_sweeps() -> dict[str, Path]:
    """The papers' ablations, by name such as `sweeps/beats_wrn_beta`."""
    return {name: path for name, path in _shipped().items() if name.startswith("sweeps/")}


def _shipped() -> dict[str, Path]:
    root = Path(str(resources.files("robustvit"))) / "recipes"
    found = {path.relative_to(root).with_suffix("").as_posix(): path for path in sorted(root.rglob("*.yaml"))}
    return {name: path for name, path in found.items() if not path.name.startswith("_")}


def load_recipe(name: str | Path) -> Tree:
    """The settings of a recipe given by name or path, with those it extends."""
    return _load_extended(_find(name), ())


def validated(kind: Any, tree: Any, where: str) -> Any:
    """An instance of a type or settings class, or one error that lists all mistakes."""
    try:
        return TypeAdapter(kind).validate_python(tree)
    except ValidationError as error:
        raise UserError(explain(error, where)) from None


def merge(base: Tree, change: Tree) -> Tree:
    """Maps are merged deeply, all else is replaced."""
    return {**base, **{key: _merged(base[key], item) if key in base else item for key, item in change.items()}}


def _merged(base: Any, change: Any) -> Any:
    if not (isinstance(base, Mapping) and isinstance(change, Mapping)):
        return change
    if "name" in change and "name" in base and change["name"] != base["name"]:
        return dict(change)  # the settings that came with another component don't fit this one
    return merge(dict(base), dict(change))


def apply_overrides(tree: Tree, overrides: Sequence[str]) -> Tree:
    for override in overrides:
        path, equals, text = override.partition("=")
        if not equals or not path.strip():
            raise UserError(f"-o {override}: expected path.to.setting=value, such as -o threat.eps=4/255")
        try:
            change: Any = yaml.safe_load(text)
        except (yaml.YAMLError, ValueError, RecursionError):
            raise UserError(f"-o {override}: '{text}' is not a YAML value") from None
        tree = _replaced(tree, path.strip().split("."), change)
    return tree


def _replaced(tree: Any, path: list[str], value: Any, nested: bool = False) -> Any:
    key, rest = path[0], path[1:]
    if isinstance(tree, list):
        if not key.isdigit() or int(key) >= len(tree):
            raise UserError(f"-o: '{key}' is not a position in a list of {len(tree)}")
        changed = list(tree)
        changed[int(key)] = _replaced(tree[int(key)], rest, value, nested=True) if rest else value
        return changed
    if isinstance(tree, str):  # `objective: trades` is short for `objective: {name: trades}`
        tree = {"name": tree}
    tree = dict(tree) if isinstance(tree, Mapping) else {}
    if key == "name" and nested and tree.get("name") != value:
        return {"name": value}
    return {**tree, key: _replaced(tree.get(key), rest, value, nested=True) if rest else value}


def _find(name: str | Path) -> Path:
    path = Path(name)
    if is_file(path):
        return path
    shipped = shipped_recipes()
    if str(name) in shipped:
        return shipped[str(name)]
    raise UserError(
        f"no recipe '{name}': neither a file nor a recipe that ships with robustvit{nearest(str(name), list(shipped))}"
    )


def read_yaml(path: Path) -> Tree:
    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "not YAML"
        raise UserError(f"{path}{place}: broken YAML: {problem}") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: not a text file") from None
    except (ValueError, RecursionError) as error:  # what PyYAML lets through: impossible dates, endless nesting
        raise UserError(f"{path}: broken YAML: {first_line(error)[:100]}") from None
    if not isinstance(tree, dict):
        raise UserError(f"{path}: a recipe is a map of settings, not {type(tree).__name__}")
    check_names(tree, str(path))
    return tree


def check_names(tree: Any, where: str) -> None:
    """Names of settings are text: YAML would also take numbers, dates or nothing."""
    if isinstance(tree, Mapping):
        for key, item in tree.items():
            if not isinstance(key, str):
                raise UserError(f"{where}: the name of a setting is text, not {key!r}")
            check_names(item, f"{where}: {key}" if ":" not in where else f"{where}.{key}")
    elif isinstance(tree, list | tuple):
        for item in tree:
            check_names(item, where)


def _load_extended(path: Path, seen: tuple[Path, ...]) -> Tree:
    path = path.resolve()
    if path in seen:
        raise UserError(f"{path}: extends itself ({' -> '.join(p.name for p in (*seen, path))})")
    tree = read_yaml(path)
    parent = tree.pop("extends", None)
    if parent is None:
        return tree
    beside = path.parent / str(parent)
    base = _load_extended(beside if beside.is_file() else _find(str(parent)), (*seen, path))
    return merge(base, tree)

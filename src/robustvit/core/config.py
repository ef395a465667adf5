"""Recipes as YAML: located by name or path, parents and variants merged, `-o path.to.setting=value` applied.

A file is one recipe, or several: then its settings are shared by all of its `variants`, each a map of what it changes.
`extends` names one parent or a list, merged in order: of a file, other files and recipes; of a variant, other variants
and `parts` of the file, which also has the parts of the files it extends.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from robustvit.core import readers
from robustvit.core.component import explaining
from robustvit.core.errors import UserError, nearest, shortened
from robustvit.core.files import is_file

Tree = dict[str, Any]

SHIPPED = Path(str(resources.files("robustvit"))) / "recipes"
_SWEEPS = "sweeps/"
_NOT_INHERITED = frozenset({"about", "expect", "was_run", "info"})
"""Describes a single recipe."""


def shipped_recipes() -> dict[str, Path]:
    """The file of every recipe inside the package, by name: `digits/trades` is a variant of a file `digits.yaml`."""
    return {name: path for name, path in _shipped().items() if not name.startswith(_SWEEPS)}


def shipped_sweeps() -> dict[str, Path]:
    """The papers' ablations, by name such as `sweeps/beats_wrn_beta`."""
    return {name: path for name, path in _shipped().items() if name.startswith(_SWEEPS)}


@cache
def _shipped() -> dict[str, Path]:
    files = [path for path in SHIPPED.glob("*/*.yaml") if not path.name.startswith("_")]
    return dict(sorted((f"{path.stem}/{name}", path) for path in files for name in _read_shipped(path)["variants"]))


def load_recipe(name: str | Path) -> Tree:
    """The settings of a recipe given by name, path or `path:variant`, with those of its parents."""
    return _load(name, "recipe", shipped_recipes())


def load_sweep(name: str | Path) -> Tree:
    return _load(name, "sweep", shipped_sweeps())


def locate(name: str | Path, shipped: Mapping[str, Path]) -> tuple[Path, str | None] | None:
    """The file of a recipe and its variant there; None: there is no such recipe."""
    path, colon, variant = str(name).rpartition(":")
    if is_file(Path(name)):
        return Path(name), None
    if colon and is_file(Path(path)):
        return Path(path), variant
    known = follow_aliases(str(name), _aliases())
    return (shipped[known], known.partition("/")[2]) if known in shipped else None


@cache
def _aliases() -> dict[str, str]:
    path = SHIPPED / "aliases.yaml"
    aliases: dict[str, str] = validated(dict[str, str], _read_shipped(path), str(path))
    return aliases


def follow_aliases(name: str, aliases: Mapping[str, str]) -> str:
    names = [name]
    while names[-1] in aliases:
        names.append(aliases[names[-1]])
        if names[-1] in names[:-1]:
            raise UserError(f"no recipe '{name}': its alias leads back to itself ({' -> '.join(names)})")
    return names[-1]


@dataclass(frozen=True)
class _File:
    """A file of recipes, with what it inherits from others: settings and parts, but no variants."""

    path: Path
    name: str
    settings: Tree
    parts: dict[str, Tree]
    variants: dict[str, Tree]

    def variant(self, name: str) -> Tree:
        if name not in self.variants:
            raise UserError(f"{self.path}: no variant '{name}'{nearest(name, list(self.variants))}")
        run_name = f"{self.name}-{name}".replace("_", "-")
        return merge(_inherited(self.settings), {"name": run_name, **self._changes(name, ())})

    def _changes(self, name: str, seen: tuple[str, ...]) -> Tree:
        """What a variant or a part sets, with its parents in this file."""
        known = {**self.parts, **self.variants}
        if name in seen:
            raise UserError(f"{self.path}: '{name}' extends itself ({' -> '.join((*seen, name))})")
        if name not in known:
            hint = nearest(name, list(known))
            raise UserError(f"{self.path}: '{seen[-1]}' extends '{name}', which is no part or variant here{hint}")
        tree, base = dict(known[name]), Tree()
        for parent in _parents(tree.pop("extends", None), f"{self.path}: {name}"):
            changes = _inherited(self._changes(parent, (*seen, name)))
            changes.pop("name", None)
            base = merge(base, changes)
        return merge(base, tree)


def _load(name: str | Path, kind: str, shipped: Mapping[str, Path], seen: tuple[Path, ...] = ()) -> Tree:
    place = locate(name, shipped)
    if place is None:
        where = f"{seen[-1]}: extends: " if seen else ""
        hint = nearest(str(name), list(shipped))
        raise UserError(f"{where}no {kind} '{name}': neither a file nor a {kind} that ships with robustvit{hint}")
    path, variant = place
    file = _load_file(path, seen)
    if variant is not None:
        return file.variant(variant)
    if file.variants:
        raise UserError(f"{path}: holds several recipes; choose one, such as {path}:{next(iter(file.variants))}")
    return file.settings


def _load_file(path: Path, seen: tuple[Path, ...]) -> _File:
    path = path.resolve()
    if path in seen:
        raise UserError(f"{path}: extends itself ({' -> '.join(p.name for p in (*seen, path))})")
    tree = deepcopy(_read_shipped(path)) if path.is_relative_to(SHIPPED) else read_yaml(path)
    own_parts, variants = _maps(tree, "parts", path), _maps(tree, "variants", path)
    settings, parts = Tree(), Tree()
    for parent in _parents(tree.pop("extends", None), str(path)):
        sibling = path.parent / parent
        if is_file(sibling):
            file = _load_file(sibling, (*seen, path))
            inherited, parts = file.settings, merge(parts, file.parts)
        else:
            name = str(sibling) if locate(sibling, {}) else parent
            inherited = _load(name, "recipe", shipped_recipes(), (*seen, path))
        settings = merge(settings, _inherited(inherited))
    parts = merge(parts, own_parts)
    both = sorted(set(variants) & set(parts))
    if both:
        raise UserError(f"{path}: '{both[0]}' is a part and a variant; rename one")
    return _File(path, str(tree.get("name", path.stem)), merge(settings, tree), parts, variants)


def _maps(tree: Tree, key: str, path: Path) -> dict[str, Tree]:
    maps = tree.pop(key, {})
    if not isinstance(maps, Mapping) or not all(isinstance(item, Mapping | None) for item in maps.values()):
        raise UserError(f"{path}: {key}: a map of names, each with a map of settings")
    return {name: dict(item or {}) for name, item in maps.items()}


def _parents(extends: Any, where: str) -> list[str]:
    parents = [] if extends is None else extends if isinstance(extends, list) else [extends]
    if not all(isinstance(parent, str) for parent in parents):
        raise UserError(f"{where}: extends: a name or a list of names, not {extends!r}")
    return parents


def _inherited(tree: Tree) -> Tree:
    return {key: value for key, value in tree.items() if key not in _NOT_INHERITED}


def validated(kind: Any, tree: Any, where: str) -> Any:
    """An instance of a type or settings class, or one error that lists all mistakes."""
    with explaining(where):
        return TypeAdapter(kind).validate_python(tree)


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
        change = readers.parse_yaml(text, f"-o {shortened(override)}")
        check_names(change, f"-o {path}")
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


def read_yaml(path: Path) -> Tree:
    tree = readers.read_yaml(path)
    if not isinstance(tree, dict):
        raise UserError(f"{path}: a recipe is a map of settings, not {type(tree).__name__}")
    check_names(tree, str(path))
    return tree


_read_shipped = cache(read_yaml)


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

"""Text that is read back, one reader for each format: JSON, YAML, the header of safetensors files.

Files may have been edited, cut, damaged or made by somebody else. Every reader bounds size and depth, checks a schema
where the content is known, and raises a UserError that names the file, the place in it and the remedy.
"""

import json
import math
import os
import stat
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import TypeAdapter, ValidationError
from typing_extensions import TypedDict

from robustvit.core.errors import UserError, first_line

T = TypeVar("T")

MOST_BYTES = 64 << 20
"""Of a JSON file, or of one line of a journal."""
MOST_YAML = 1 << 20
"""Bytes of a YAML file, which is written by hand."""
MOST_DEPTH = 64
"""Of nested lists and maps."""
MOST_NODES = 250_000
"""Values of a YAML file once its aliases are expanded."""
MOST_DIGITS = 100
"""Characters of a number in YAML."""


def unreadable(where: object, problem: str, remedy: str = "") -> UserError:
    """What every reader raises."""
    return UserError(f"{where}: {problem}" + (f"; {remedy}" if remedy else ""))


def regular_size(path: Path, remedy: str = "") -> int:
    """Bytes of a file; what isn't one, such as a pipe or a device, would never end."""
    try:
        state = os.stat(path)
    except (OSError, ValueError) as error:
        raise unreadable(path, f"can't be read ({getattr(error, 'strerror', None) or error})", remedy) from None
    if not stat.S_ISREG(state.st_mode):
        kind = "a folder" if stat.S_ISDIR(state.st_mode) else "a pipe, socket or device"
        raise unreadable(path, f"{kind}, where a file is expected", remedy)
    return state.st_size


def read_bytes(path: Path, most: int | None = MOST_BYTES, remedy: str = "") -> bytes:
    """The content of a regular file."""
    size = regular_size(path, remedy)
    if most is not None and size > most:
        raise unreadable(path, f"{size:,} bytes, where at most {most:,} are expected", remedy)
    try:
        return path.read_bytes()
    except OSError as error:
        raise unreadable(path, f"can't be read ({error.strerror})", remedy) from None


def read_text(path: Path, most: int = MOST_BYTES, remedy: str = "") -> str:
    try:
        return read_bytes(path, most, remedy).decode("utf-8")
    except UnicodeDecodeError as error:
        raise unreadable(path, f"not a text file (byte {error.start + 1} is not UTF-8)", remedy) from None


def parse_json(data: bytes, where: object, remedy: str = "") -> Any:
    """A JSON text in UTF-8; numbers are finite, and NaN, which JSON doesn't know, is null."""
    try:
        value = _DECODER.decode(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise unreadable(where, f"not JSON ({first_line(error)[:100]})", remedy) from None
    # counting brackets is fast, and most texts have fewer of them than the limit
    if data.count(b"[") + data.count(b"{") > MOST_DEPTH and _depth(value) > MOST_DEPTH:
        raise unreadable(where, f"lists and maps are nested deeper than {MOST_DEPTH} levels", remedy)
    return value


def read_json(path: Path, schema: TypeAdapter[T], what: str, remedy: str = "") -> T:
    """The content of a JSON file as a schema describes it; `what` names it, such as `whole result`."""
    return conforming(parse_json(read_bytes(path, remedy=remedy), path, remedy), schema, path, what, remedy)


def conforming(value: Any, schema: TypeAdapter[T], where: object, what: str, remedy: str = "") -> T:
    """The value that a schema makes of plain data, or an error that names the first place that doesn't fit."""
    try:
        return schema.validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place, message = ".".join(str(part)[:40] for part in first["loc"]), first["msg"].splitlines()[0][:200]
        raise unreadable(where, f"not a {what} ({place}{': ' if place else ''}{message})", remedy) from None


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:20]} is too large for a number")
    return number


_DECODER = json.JSONDecoder(parse_float=_finite, parse_constant=lambda _: None)


def _depth(value: Any) -> int:
    depth, level = 0, [value]
    while level and depth <= MOST_DEPTH:
        nested = [one for one in level if isinstance(one, list | dict)]
        depth += bool(nested)
        level = [item for one in nested for item in (one.values() if isinstance(one, dict) else one)]
    return depth


class _Tensor(TypedDict):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


_TENSORS: TypeAdapter[dict[str, _Tensor]] = TypeAdapter(dict[str, _Tensor])
_TEXTS: TypeAdapter[dict[str, str]] = TypeAdapter(dict[str, str])


def read_safetensors_metadata(path: Path) -> dict[str, str]:
    """The texts in the header of a safetensors file, whose tensors are checked to lie inside the file."""
    what, size = "whole safetensors file", regular_size(path)
    with path.open("rb") as file:
        begin = file.read(8)
        length = int.from_bytes(begin, "little")
        if len(begin) < 8 or length > min(MOST_BYTES, size - 8):
            raise unreadable(path, f"not a {what} ({size} bytes do not hold its header)")
        header = parse_json(file.read(length), f"{path}: not a {what}")
    header = conforming(header, TypeAdapter(dict[str, Any]), path, what)
    metadata = conforming(header.pop("__metadata__", {}), _TEXTS, f"{path}: __metadata__", what)
    for name, tensor in conforming(header, _TENSORS, path, what).items():
        first, last = tensor["data_offsets"]
        if not 0 <= first <= last <= size - 8 - length or any(side < 0 for side in tensor["shape"]):
            raise unreadable(path, f"not a {what} (tensor '{name[:80]}' lies outside of it)")
    return metadata


def parse_yaml(text: str, where: object) -> Any:
    """A YAML document of plain values; aliases are counted as often as they are used."""
    try:
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return None
            _measure(node, {}, ())
            return loader.construct_document(node)
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None) or "not YAML"
        place = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        raise unreadable(where, f"broken YAML: {first_line(ValueError(problem))[:200]}{place}") from None
    except Exception as error:  # PyYAML lets through whatever it runs into: impossible dates, endless nesting
        raise unreadable(where, f"broken YAML: {first_line(error)[:100]}") from None


def read_yaml(path: Path) -> Any:
    return parse_yaml(read_text(path, MOST_YAML), path)


_DEEP = f"lists and maps are nested deeper than {MOST_DEPTH} levels"


class _Loader(yaml.SafeLoader):
    """Refuses what is nested too deep at once; PyYAML would take seconds until Python's stack ends."""

    depth = 0

    def fetch_flow_collection_start(self, kind: Any) -> None:
        if self.flow_level >= MOST_DEPTH:
            raise yaml.scanner.ScannerError(None, None, _DEEP, self.get_mark())
        super().fetch_flow_collection_start(kind)

    def compose_node(self, parent: Any, index: Any) -> Any:
        self.depth += 1
        if self.depth > MOST_DEPTH + 1:
            raise yaml.composer.ComposerError(None, None, _DEEP, self.get_mark())
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


_NUMBERS = frozenset(f"tag:yaml.org,2002:{kind}" for kind in ("int", "float", "timestamp"))


def _measure(node: Any, known: dict[int, tuple[int, int]], above: tuple[int, ...]) -> tuple[int, int]:
    """How many values a node holds and how deep they are nested, aliases expanded; raises where it is too much."""
    if id(node) in above:
        raise _broken("a value that contains itself", node)
    if id(node) in known:
        return known[id(node)]
    if isinstance(node, yaml.ScalarNode):
        if node.tag in _NUMBERS and len(node.value) > MOST_DIGITS:
            raise _broken(f"a number of {len(node.value)} characters", node)
        return 1, 0
    children = node.value
    if isinstance(node, yaml.MappingNode):
        _refuse_repeated([key for key, _ in node.value])
        children = [child for pair in node.value for child in pair]
    measured = [_measure(child, known, (*above, id(node))) for child in children]
    count, depth = 1 + sum(count for count, _ in measured), 1 + max((depth for _, depth in measured), default=0)
    if count > MOST_NODES or depth > MOST_DEPTH:
        raise _broken(f"more than {MOST_NODES:,} values or {MOST_DEPTH} levels, its aliases expanded", node)
    known[id(node)] = count, depth
    return count, depth


def _refuse_repeated(keys: list[Any]) -> None:
    """YAML would take the last one without a word."""
    seen = set()
    for key in keys:
        name = (key.tag, key.value) if isinstance(key, yaml.ScalarNode) else id(key)
        if name in seen:
            raise _broken(f"'{str(key.value)[:80]}' is given twice", key)
        seen.add(name)


def _broken(problem: str, node: Any) -> yaml.YAMLError:
    return yaml.constructor.ConstructorError(None, None, problem, node.start_mark)

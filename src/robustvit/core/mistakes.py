"""What is wrong with settings, in the words of their users instead of pydantic's."""

import re
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from robustvit.core.errors import short_repr

_EXPECTED = {
    "dataclass_type": "a map of settings",
    "dataclass_exact_type": "a map of settings",
    "dict_type": "a map",
    "tuple_type": "a list",
    "list_type": "a list",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "a text",
    "path_type": "a path",
}
"""By the type of a mistake: what another type of value was expected to be."""
_NO_INPUT = frozenset({"unknown_setting", "missing", "missing_argument", "value_error"})
_SHOULD_BE = "input should be "


@dataclass(frozen=True)
class _Mistake:
    union: tuple[str, ...] | None
    """Where one of several types would do; None where a single one does."""
    path: tuple[str, ...]
    kind: str
    text: str
    given: Any

    @classmethod
    def of(cls, item: Any) -> "_Mistake":
        places, kind = [str(part) for part in item["loc"]], item["type"]
        tag = next((number for number, part in enumerate(places) if _is_type(part)), None)
        path = tuple(part for part in places if not _is_type(part))
        return cls(None if tag is None else tuple(places[:tag]), path, kind, _text(kind, item["msg"]), item["input"])

    @property
    def is_other_type(self) -> bool:
        return self.kind in _EXPECTED or self.kind == "literal_error"


def explain(error: ValidationError, where: str) -> str:
    """Every mistake of a validation, a line each, with its path."""
    mistakes = [_Mistake.of(item) for item in error.errors(include_url=False)]
    kept = [one for one in mistakes if _is_telling(one, mistakes)]
    lines: dict[tuple[str, ...], list[_Mistake]] = {}
    for one in kept:
        lines.setdefault(one.path, []).append(one)
    return "\n".join(_line(".".join((where, *path)), same) for path, same in lines.items())


def _is_telling(one: _Mistake, others: list[_Mistake]) -> bool:
    """Not what only follows from another: a list short of its wrong items, or a type that was not meant."""
    if one.kind == "too_short":
        return not any(other.path[: len(one.path)] == one.path and len(other.path) > len(one.path) for other in others)
    if one.union is None:
        return True
    rivals = [other for other in others if other.union == one.union]
    deepest = max(len(other.path) for other in rivals)
    if deepest > len(one.union):
        return len(one.path) > len(one.union)
    return not one.is_other_type or all(other.is_other_type for other in rivals)


def _line(path: str, same: list[_Mistake]) -> str:
    first, *others = dict.fromkeys(one.text for one in same)
    text = " or ".join((first, *(other.removeprefix(_SHOULD_BE) for other in others)))
    shown = "" if same[0].kind in _NO_INPUT else f", not {short_repr(same[0].given)}"
    return f"{path}: {text}{shown}"


def _text(kind: str, message: str) -> str:
    if kind in _EXPECTED:
        return f"{_SHOULD_BE}{_EXPECTED[kind]}"
    if kind == "too_short" and (least := re.search(r"at least (\d+) items?", message)):
        return least[0]
    message = message.removeprefix("Value error, ")
    return message[0].lower() + message[1:] if message[:2].istitle() else message


def _is_type(part: str) -> bool:
    """Whether a part of a path is pydantic's name of one type of several, and no setting's."""
    return part.endswith("]") or part in ("int", "float", "str", "bool") or part.startswith("constrained-")

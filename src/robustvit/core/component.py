"""Objects that are their own configuration.

`@settings` makes a frozen, validated dataclass; `@component(kind, name)` also registers it, so that YAML can name it.
A field annotated with `OneOf(kind)` takes a registered instance, a name, or `{name: ..., settings}`.
"""

import dataclasses
import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from types import FunctionType
from typing import Any, TypeVar, dataclass_transform

from pydantic import ConfigDict, ValidationError, model_validator
from pydantic.dataclasses import dataclass as pydantic_dataclass, is_pydantic_dataclass
from pydantic_core import ArgsKwargs, InitErrorDetails, PydanticCustomError, core_schema

from robustvit.core.errors import UserError, first_line, nearest, short_repr, shortened
from robustvit.core.mistakes import explain as explain
from robustvit.core.progress import say

C = TypeVar("C")

_REGISTRY: dict[str, dict[str, type[Any]]] = {}
_HOMES = {"task": "robustvit.synthesis", "network": "robustvit.synthesis"}
"""Packages that register components of a kind which is asked for by others, below them, that never import them."""


def registered(kind: str) -> dict[str, type[Any]]:
    """Every component of a kind by its name, sorted; also those of plugins."""
    load_plugins()
    if kind in _HOMES:
        importlib.import_module(_HOMES[kind])
    return dict(sorted(_REGISTRY.get(kind, {}).items()))


def is_component(value: object, kind: str) -> bool:
    return isinstance(value, tuple(_REGISTRY.get(kind, {}).values()))


def kinds() -> list[str]:
    load_plugins()
    for home in set(_HOMES.values()):
        importlib.import_module(home)
    return sorted(_REGISTRY)


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def settings(cls: type[C]) -> type[C]:
    """A frozen dataclass that checks its fields, refuses unknown ones and names the nearest known one."""

    def explain_unknown(klass: type[Any], value: Any, handler: Callable[[Any], Any]) -> Any:
        try:
            made = handler(value)
        except ValidationError as error:
            known = [field.name for field in dataclasses.fields(klass)]
            raise _with_hints(error, known) from None
        _refuse_booleans(value, made)
        return made

    changed: Any = cls
    changed._explain_unknown = model_validator(mode="wrap")(classmethod(explain_unknown))  # type: ignore[arg-type]
    config = ConfigDict(extra="forbid", arbitrary_types_allowed=True, allow_inf_nan=False)
    return pydantic_dataclass(frozen=True, config=config)(changed)  # type: ignore[return-value]


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def component(kind: str, name: str) -> Callable[[type[C]], type[C]]:
    """Register a settings class as `name` among the components of `kind`."""

    def decorate(cls: type[C]) -> type[C]:
        cls.name = name  # type: ignore[attr-defined]
        made = settings(cls)
        known = _REGISTRY.setdefault(kind, {})
        if name in known:
            raise ValueError(f"{kind} '{name}' is registered twice: in {known[name].__module__} and {cls.__module__}")
        known[name] = made
        return made

    return decorate


def build(kind: str, value: Any) -> Any:
    """A component from an instance, a name, or a mapping with `name` and settings."""
    if is_component(value, kind):
        return value
    if isinstance(value, str):
        value = {"name": value}
    if not isinstance(value, Mapping):
        raise UserError(f"expected a registered {kind}, a name or a mapping with 'name', not {short_repr(value)}")
    # plugins are loaded for names that aren't registered yet: modules build components while they are imported
    named = value.get("name")
    known = _REGISTRY[kind] if isinstance(named, str) and named in _REGISTRY.get(kind, {}) else registered(kind)
    article = "an" if kind[0] in "aeiou" else "a"
    if "name" not in value:
        raise UserError(f"{article} {kind} needs a 'name'; known: {', '.join(known)}")
    name, rest = value["name"], {key: item for key, item in value.items() if key != "name"}
    if not isinstance(name, str) or not all(isinstance(key, str) for key in rest):
        raise UserError(f"{article} {kind} has a name and settings that are text, not {short_repr(value)}")
    if name not in known:
        raise UserError(f"no {kind} '{name}'{nearest(str(name), list(known))}")
    hidden = next((key for key in rest if key.startswith("__")), None)
    if hidden is not None:  # Python's own names of arguments
        raise UserError(f"{kind} '{name}': no such setting '{shortened(hidden)}'")
    return known[name](**rest)


@dataclasses.dataclass(frozen=True)
class OneOf:
    """Marks a field that holds a component: `Annotated[Attack, OneOf("attack")]`."""

    kind: str
    only: str | None = None
    """The one name that fits, where no other component does."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(self._validate)

    def _validate(self, value: Any) -> Any:
        if self.only and isinstance(value, Mapping) and "name" not in value:
            value = {"name": self.only, **value}
        made = build(self.kind, value)
        if self.only and made.name != self.only:
            raise UserError(f"only the {self.kind} '{self.only}' fits here, not '{made.name}'")
        return made


def to_dict(value: Any) -> Any:
    """Plain data that `build` reads back: a component keeps its `name`."""
    if is_pydantic_dataclass(type(value)):
        fields = {field.name: to_dict(getattr(value, field.name)) for field in dataclasses.fields(value)}
        name = getattr(type(value), "name", None)
        return {"name": name, **fields} if isinstance(name, str) and "name" not in fields else fields
    if isinstance(value, Mapping):
        return {str(key): to_dict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_dict(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)


def _refuse_booleans(given: Any, made: Any) -> None:
    """`eps: true` is a mistake, not the number 1."""
    settings = given
    if isinstance(given, ArgsKwargs):
        names = (field.name for field in dataclasses.fields(made))
        settings = dict(zip(names, given.args, strict=False)) | (given.kwargs or {})
    details = [
        InitErrorDetails(type=PydanticCustomError("number", "a number"), loc=(name,), input=value)
        for name, value in (settings.items() if isinstance(settings, dict) else ())
        if isinstance(value, bool) and type(getattr(made, str(name), None)) in (int, float)
    ]
    if details:
        raise ValidationError.from_exception_data(type(made).__name__, details)


def _with_hints(error: ValidationError, known: list[str]) -> ValidationError:
    details: list[InitErrorDetails] = []
    for item in error.errors(include_url=False):
        kind, text = item["type"], item["msg"].removeprefix("Value error, ")
        if kind == "unexpected_keyword_argument" and len(item["loc"]) == 1:
            kind, text = "unknown_setting", f"no such setting{nearest(str(item['loc'][0]), known)}"
        custom = PydanticCustomError(kind, "{text}", {"text": text})
        first, *others = item["loc"] or ("",)
        place = known[first] if isinstance(first, int) and first < len(known) else first  # given by position
        details.append(InitErrorDetails(type=custom, loc=(place, *others) if item["loc"] else (), input=item["input"]))
    return ValidationError.from_exception_data(error.title, details)


@contextmanager
def explaining(where: str) -> Iterator[None]:
    """A validation that fails inside is one UserError with all its mistakes."""
    try:
        yield
    except ValidationError as error:
        raise UserError(explain(error, where)) from None


GROUP = "robustvit.plugins"
_LOADED: set[str] = set()


def load_plugins() -> None:
    """Once in a process; a plugin that fails is left out with a warning."""
    if GROUP in _LOADED:  # or on its way: a plugin may ask the registry while it is imported
        return
    _LOADED.add(GROUP)
    for entry in sorted(metadata.entry_points(group=GROUP), key=lambda entry: entry.name):
        try:
            loaded = entry.load()
            if isinstance(loaded, FunctionType):
                loaded()
        except (Exception, SystemExit) as error:
            package = entry.dist.name if entry.dist is not None else entry.value
            say(f"warning: plugin '{entry.name}' of package '{package}': {type(error).__name__}: {first_line(error)}")

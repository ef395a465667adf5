"""Which corruptions are meant: by a word for the paper's sets, or by name."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from robustvit.core.component import build, registered
from robustvit.core.errors import nearest, short_repr
from robustvit.data.corruptions.base import SEVERITIES, Corruption
from robustvit.data.corruptions.parameters import EXTRA, STANDARD

Frost = Literal["drawn"] | Path
_SETS = {"standard": STANDARD, "extra": EXTRA, "all": STANDARD + EXTRA}


def _which(value: Any) -> Any:
    if isinstance(value, str) and value in _SETS:
        return value
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not names or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{', '.join(_SETS)}, or a list of corruptions, not {short_repr(value)}")
    known = list(registered("corruption"))
    unknown = next((name for name in names if name not in known), None)
    if unknown is not None:
        raise ValueError(f"no corruption '{unknown}'{nearest(unknown, [*_SETS, *known])}")
    if len(set(names)) < len(names):
        raise ValueError(f"a corruption is there twice in {list(names)}")
    return tuple(names)


def _severities(value: Any) -> Any:
    given = value if isinstance(value, list | tuple) else [value]
    texts = {str(severity): severity for severity in SEVERITIES}
    known = [texts.get(str(item)) for item in given]
    if not known or None in known or len(set(known)) < len(known):
        raise ValueError(f"different whole numbers from 1 to {len(SEVERITIES)}, not {short_repr(value)}")
    return tuple(sorted(item for item in known if item is not None))


Which = Annotated[Literal["standard", "extra", "all"] | tuple[str, ...], BeforeValidator(_which)]
Severities = Annotated[tuple[int, ...], BeforeValidator(_severities)]


def chosen_names(which: Any) -> tuple[str, ...]:
    """Of a `Which`, or of a single corruption's name."""
    return _SETS.get(which, (which,)) if isinstance(which, str) else tuple(which)


def chosen_corruptions(which: Any, frost: Any) -> tuple[Corruption, ...]:
    """With the source of the textures for frost."""
    settings = {"frost": {"textures": frost}}
    return tuple(build("corruption", {"name": name, **settings.get(name, {})}) for name in chosen_names(which))

"""Presets: the evaluations that make up a card, as YAML. A preset chooses evaluations, never a model."""

import re
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from robustvit.core.component import settings
from robustvit.core.config import validated
from robustvit.core.errors import UserError, nearest
from robustvit.core.files import is_file
from robustvit.core.numbers import Count, Positive
from robustvit.core.readers import read_yaml
from robustvit.threats import Norm

SHIPPED = Path(__file__).with_name("presets")
MOST_LINES = 12
"""Of a card, which is to be read at a glance."""
SMALL = 64
"""Pixels of the longer side up to which images are small."""

Size = Literal["small", "large"]


def _name(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9-]*", text):
        raise ValueError(f"'{text}': letters, digits and hyphens")
    return text


Name = Annotated[str, AfterValidator(_name)]


@settings
class RowThreat:
    """Which perturbations a row allows."""

    eps: Positive | dict[Size, Positive]
    """One for all images, or one each for small and large ones."""
    norm: Norm = "inf"
    """Of the change."""
    prefer_run: bool = False
    """Whether a model that was trained for this norm is attacked at the eps of its own run."""


@settings
class PresetRow:
    """One evaluation, and what the card shows of it."""

    name: Name
    """Letters, digits and hyphens."""
    suite: str | dict[str, Any]
    """As `--suite` takes it."""
    measures: dict[Name, str] = field(default_factory=dict)
    """What the card calls them, and their names in the result: the first must be there, further ones may.

    Default: the headline, under the row's own name.
    """
    threat: RowThreat | None = None
    """Null: that of the model's run, where the suite needs one."""
    data: dict[str, Any] = field(default_factory=dict)
    """Settings of the data that differ, such as `preprocess`."""
    images: Count | dict[Size, Count] | None = None
    """Null: all. One number, or one each for `small` images (up to 64 px) and `large` ones; images of a size that isn't
    listed have no such row."""

    @property
    def lines(self) -> dict[str, str]:
        return self.measures or {self.name: ""}

    def has(self, size: Size) -> bool:
        return not isinstance(self.images, Mapping) or size in self.images


@settings
class Preset:
    """The rows of a card."""

    about: str
    """One sentence."""
    rows: Annotated[tuple[PresetRow, ...], Field(min_length=1)]
    """The evaluations, in the order of the card."""
    paper: str = ""
    """Whose protocol it is."""
    data: dict[str, Any] = field(default_factory=dict)
    """Settings of the data that differ in all rows."""

    @model_validator(mode="after")
    def _check(self) -> "Preset":
        lines = [name for row in self.rows for name in row.lines]
        for what, names in (("rows", [row.name for row in self.rows]), ("measures", lines)):
            twice = next((name for name in names if names.count(name) > 1), None)
            if twice is not None:
                raise ValueError(f"{what}: '{twice}' is there twice")
        if len(lines) > MOST_LINES:
            raise ValueError(f"rows: {len(lines)} lines, where a card has at most {MOST_LINES}")
        return self

    @property
    def lines(self) -> dict[str, str]:
        """What a card may call a number, and its name in the result; empty: the headline."""
        return {name: measure for row in self.rows for name, measure in row.lines.items()}


def by_size(value: Any, size: Size) -> Any:
    """The entry for this size, of what may be given for each."""
    return value[size] if isinstance(value, Mapping) else value


def shipped_presets() -> dict[str, Path]:
    return {path.stem: path for path in sorted(SHIPPED.glob("*.yaml"))}


def load_preset(name: str | Path) -> Preset:
    """One that ships with robustvit, or a YAML file."""
    path = Path(name)
    if not is_file(path):
        shipped = shipped_presets()
        if str(name) not in shipped:
            hint = nearest(str(name), list(shipped))
            raise UserError(f"no preset '{name}': neither a file nor a preset that ships with robustvit{hint}")
        path = shipped[str(name)]
    preset: Preset = validated(Preset, read_yaml(path), str(path))
    return preset

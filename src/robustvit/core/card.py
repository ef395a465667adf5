"""The file of a card: which result each model has in each row, or why it has none. It holds no number itself."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter

from robustvit.core.checksum import read_json_with_checksum, with_checksum
from robustvit.core.errors import UserError, short_repr
from robustvit.core.files import write_json
from robustvit.core.readers import conforming

FILE, PAGE = "card.json", "card.html"


@dataclass(frozen=True)
class CardRow:
    """An evaluation."""

    name: str
    measures: dict[str, str]
    """What the card calls them, and their names in the result; empty: the headline."""


@dataclass(frozen=True)
class CardModel:
    """A model of the card."""

    name: str
    source: str
    recipe: str
    results: dict[str, str]
    """By row, the folder of its result, from where the card lies."""
    missing: dict[str, str]
    """By row, why there is none."""


@dataclass(frozen=True)
class CardFile:
    """What `card.json` holds."""

    preset: str
    about: str
    rows: tuple[CardRow, ...]
    models: tuple[CardModel, ...]
    version: Literal[1] = 1


_ADAPTER: TypeAdapter[CardFile] = TypeAdapter(CardFile)


def write_card(folder: Path, card: CardFile) -> None:
    write_json(folder / FILE, with_checksum(asdict(card)))


def read_card(path: Path) -> CardFile:
    what, remedy = "whole card", "robustvit card writes it anew"
    content = read_json_with_checksum(path, _ADAPTER, what, remedy)
    card: CardFile = conforming(content, _ADAPTER, path, what, remedy)
    names = {row.name for row in card.rows}
    if not card.rows or not card.models or not all(row.measures for row in card.rows):
        raise UserError(f"{path}: not a {what} (it has no rows, models or measures); {remedy}")
    for model in card.models:
        if {*model.results, *model.missing} != names or set(model.results) & set(model.missing):
            raise UserError(f"{path}: not a {what} ({short_repr(model.name)} has other rows than the card); {remedy}")
    return card

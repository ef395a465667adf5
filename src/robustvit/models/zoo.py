"""The models that come with the package: trained by its own recipes, each with a card and its result."""

import hashlib
from pathlib import Path

from robustvit.core.component import settings
from robustvit.core.config import read_yaml, validated
from robustvit.core.errors import UserError, nearest
from robustvit.core.files import is_file
from robustvit.core.numbers import Count, NonNegative
from robustvit.core.result import Result
from robustvit.core.result_files import read_result

ZOO = Path(__file__).parents[1] / "zoo"
PREFIX = "zoo:"
CARD, WEIGHTS = "card.yaml", "model.safetensors"


@settings
class Card:
    """What a user should know of a model before trusting it."""

    about: str
    recipe: str
    """Of the package, with the overrides that follow."""
    commit: str
    """Of the sources that trained it."""
    seed: int
    cpu_seconds: NonNegative
    processor: str
    """Whose seconds these are."""
    parameters: Count
    multiply_adds: Count
    sha256: str
    """Of the weights."""
    limits: str
    license: str
    overrides: tuple[str, ...] = ()


def zoo_names() -> list[str]:
    return sorted(path.parent.name for path in ZOO.glob(f"*/{CARD}"))


def zoo_folder(name: str) -> Path:
    name = name.removeprefix(PREFIX)
    if name not in zoo_names():
        raise UserError(f"the zoo has no model '{name}'{nearest(name, zoo_names())}; `robustvit list zoo` names them")
    return ZOO / name


def zoo_card(name: str) -> Card:
    path = zoo_folder(name) / CARD
    card: Card = validated(Card, read_yaml(path), str(path))
    return card


def zoo_result(name: str) -> Result:
    """AutoAttack on images of the test set, image by image."""
    return read_result(zoo_folder(name))


def zoo_weights(name: str) -> Path:
    """The file, whose content is what the card says."""
    path, card = zoo_folder(name) / WEIGHTS, zoo_card(name)
    if not is_file(path):
        raise UserError(f"{path}: missing; install robustvit anew")
    with path.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != card.sha256:
            raise UserError(f"{path}: damaged (its checksum isn't the card's); install robustvit anew")
    return path

"""The models that come with the package: trained by its own recipes, each with a card and its result."""

import hashlib
from pathlib import Path

from robustvit.core.component import settings
from robustvit.core.config import read_yaml, validated
from robustvit.core.errors import UserError, first_line, nearest
from robustvit.core.files import is_file
from robustvit.core.numbers import Count, NonNegative
from robustvit.core.result import Result
from robustvit.core.result_files import read_result

ZOO = Path(__file__).parents[1] / "zoo"
PREFIX = "zoo:"
CARD, WEIGHTS = "card.yaml", "model.safetensors"
_ANEW = "install robustvit anew"


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
    search: str
    """How training attacked, such as `pgd, 2 steps`; `none` where it didn't."""
    sha256: str
    """Of the weights."""
    limits: str
    license: str
    overrides: tuple[str, ...] = ()


def zoo_names() -> list[str]:
    return sorted(path.name for path in ZOO.iterdir() if path.is_dir() and path.name[0] not in "._")


def zoo_folder(name: str) -> Path:
    name = name.removeprefix(PREFIX)
    if name not in zoo_names():
        raise UserError(f"the zoo (robustvit list zoo) has no model '{name}'{nearest(name.lower(), zoo_names())}")
    return ZOO / name


def zoo_card(name: str) -> Card:
    path = zoo_folder(name) / CARD
    try:
        card: Card = validated(Card, read_yaml(path), str(path))
    except UserError as error:
        raise UserError(f"{error}; {_ANEW}") from None
    return card


def zoo_result(name: str) -> Result:
    """AutoAttack on images of the test set, image by image."""
    folder = zoo_folder(name)
    try:
        result = read_result(folder)
    except UserError as error:
        raise UserError(f"{first_line(error).partition(';')[0]}; {_ANEW}") from None  # there is no ledger to read again
    if result.provenance.checkpoint.get("sha256") != zoo_card(name).sha256:
        raise UserError(f"{folder}: its result is not of the weights that its card describes; {_ANEW}")
    return result


def zoo_weights(name: str) -> Path:
    """The file, whose content is what the card says."""
    path, card = zoo_folder(name) / WEIGHTS, zoo_card(name)
    if not is_file(path):
        raise UserError(f"{path}: missing; {_ANEW}")
    with path.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != card.sha256:
            raise UserError(f"{path}: damaged (its checksum isn't the card's); {_ANEW}")
    return path

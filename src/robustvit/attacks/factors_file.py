"""Attention factors of an evaluation: searched for once on a sample of its images, kept in a file, read back."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, cast

import torch
from pydantic import BeforeValidator, Field, TypeAdapter
from torch import Tensor
from typing_extensions import TypedDict

from robustvit.attacks.base import AttackSubject, Classifier
from robustvit.attacks.factor_search import FactorSearch, module_of
from robustvit.core.checksum import with_checksum, without_checksum
from robustvit.core.component import to_dict
from robustvit.core.errors import UserError
from robustvit.core.files import is_file, write_json
from robustvit.core.numbers import parse_number
from robustvit.core.progress import Progress
from robustvit.core.readers import read_json
from robustvit.models.attention_factors import LEAST, MOST, is_factor
from robustvit.models.attention_probe import scalable_blocks

FILE = "factors.json"
_REMEDY = "remove the folder of its evaluation to have them searched for anew"
_Factor = Annotated[float, Field(ge=LEAST, le=MOST, strict=True)]
_Cost = Annotated[int | float, Field(ge=0)]


class _Entry(TypedDict):
    """What a search leaves."""

    search: dict[str, Any]
    model: str
    factors: Annotated[list[_Factor], Field(min_length=1)]
    images: Annotated[int, Field(ge=0)]
    passes: _Cost
    seconds: _Cost
    checksum: str


_ENTRIES: TypeAdapter[Any] = TypeAdapter(Annotated[list[_Entry] | list[_Factor], Field(min_length=1)])


def _read(path: Path) -> Any:
    """Entries of searches, or a plain list of numbers."""
    values = read_json(path, _ENTRIES, "list of factors, which are numbers above 0", _REMEDY)
    return [without_checksum(one, path, _REMEDY) if isinstance(one, dict) else one for one in values]


def searched_factors(search: FactorSearch, subject: AttackSubject, folder: Path | None) -> dict[str, Any]:
    """What the folder keeps of this search, or else the search carried out and kept there."""
    path = None if folder is None else folder / FILE
    kept = _read(path) if path is not None and is_file(path) else []
    if not all(isinstance(entry, dict) and entry["model"] == subject.fingerprint() for entry in kept):
        raise UserError(f"{path}: not the factors of a search on this model; {_REMEDY}")
    known: dict[str, Any] | None = next((entry for entry in kept if entry["search"] == to_dict(search)), None)
    entry = known or search_factors(search, subject)
    if path is not None and known is None:
        write_json(path, list(map(with_checksum, [*kept, entry])))
    return entry


def search_factors(search: FactorSearch, subject: AttackSubject) -> dict[str, Any]:
    """The factors with what they were searched by and on, and what it cost."""
    begin, model = time.perf_counter(), _Counted(subject)
    chosen = search.choose(subject.indices, subject.seed)
    count = sum(map(len, chosen))

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        title = "attention factors" if search.steps else "random attention factors"
        with Progress(title, count, quiet=subject.quiet) as progress:
            for part in chosen:
                yield subject.batch(part)
                progress.advance(len(part))

    factors = search(model, module_of(subject), batches(), subject.seed)
    return {
        "search": to_dict(search),
        "model": subject.fingerprint(),
        "factors": list(factors),
        "images": count,
        "passes": model.passes,
        "seconds": round(time.perf_counter() - begin, 3),
    }


class _Counted:
    """A classifier that counts the images that pass through it, forward and backward."""

    def __init__(self, model: Classifier) -> None:
        self._model, self.passes = model, 0

    def __call__(self, x: Tensor) -> Tensor:
        logits: Any = self._model(x)  # typed so because torch leaves `register_hook` untyped
        self._count(logits)
        if logits.requires_grad:
            logits.register_hook(self._count)
        return cast(Tensor, logits)

    def _count(self, rows: Tensor) -> None:
        self.passes += len(rows)


def read_factors(path: Path) -> tuple[tuple[float, ...], str | None]:
    """From a file: a list of numbers, or what an evaluation searched for and the fingerprint of its model."""
    if not is_file(path):
        raise UserError(f"factors: no such file '{path}'; an evaluation with aas- suites keeps its own as {FILE}")
    values, model = _read(path), None
    if isinstance(values[0], dict):
        searched = [entry for entry in values if entry["search"].get("steps")]
        entry = (searched or values)[0]
        values, model = entry["factors"], entry["model"]
    return tuple(float(value) for value in values), model


def _given(value: Any) -> Any:
    try:
        value = parse_number(value)
    except ValueError:  # text that is no number
        return Path(value)
    if not isinstance(value, Path) and not is_factor(value):
        raise ValueError(f"one factor above 0 for all blocks, or the factors.json of an evaluation, not {value!r}")
    return value


GivenFactors = Annotated[float | Path, BeforeValidator(_given)]
"""One factor for all blocks, or the factors.json of an evaluation."""


def factors_for(subject: AttackSubject, given: float | Path) -> tuple[Tensor, str]:
    """A factor for each block, checked to be this model's; and their description for a caption."""
    count = len(scalable_blocks(module_of(subject)))
    if not isinstance(given, Path):
        return torch.full((count,), given), f", scaled: every block by {given:g}"
    values, model = read_factors(given)
    check_model(subject, model)
    return torch.tensor(values), f", scaled: by {', '.join(f'{value:.2g}' for value in values)} ({given})"


def check_model(subject: AttackSubject, searched_on: str | None) -> None:
    """Factors belong to the model that they were searched on."""
    if searched_on is not None and searched_on != subject.fingerprint():
        advice = "search anew, or give them as a plain list of numbers"
        raise UserError(f"factors: they were found on another model; {advice}")

"""Entries of RobustBench: those that come with the package, files in its format, and results written as such files."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, TypeAdapter

from robustvit.core.errors import UserError
from robustvit.core.files import is_folder, write_json
from robustvit.core.numbers import parse_number
from robustvit.core.readers import conforming, read_json

FILE = Path(__file__).with_name("robustbench.json")
THREATS = {"inf": "Linf", "2": "L2"}
"""What RobustBench calls the norms that it has a table of."""
PROTOCOLS = {
    ("cifar10", "inf"): "8/255",
    ("cifar100", "inf"): "8/255",
    ("imagenet", "inf"): "4/255",
    ("cifar10", "2"): "0.5",
}
"""The eps of each table, which all of its entries are judged at."""
TEST_IMAGES = {"cifar10": 10_000, "cifar100": 10_000}
"""Of the whole test set. Of ImageNet it takes a list of 5,000, and no result says which images it was made from."""


def _number(value: Any) -> Any:
    """Their numbers are texts, some of which are empty."""
    return None if value in ("", "N/A", None) else parse_number(value)


Percent = Annotated[float | None, BeforeValidator(_number), Field(ge=0, le=100)]


@dataclass(frozen=True)
class Published:
    """An entry, with the names that RobustBench's files have."""

    dataset: str
    threat: str
    id: str
    architecture: str = ""
    venue: str = ""
    additional_data: bool | None = None
    eps: str | None = None
    clean_acc: Percent = None
    autoattack_acc: Percent = None
    external: Percent = None
    """What a stronger attack than AutoAttack left, where one is known."""
    corruptions_acc: Percent = None
    corruptions_mce: Annotated[float | None, BeforeValidator(_number)] = None
    name: str = ""
    authors: str = ""
    link: str | None = None

    @property
    def year(self) -> int | None:
        found = re.search(r"\b(?:19|20)\d\d\b", self.venue)
        return None if found is None else int(found[0])

    @property
    def key(self) -> tuple[str, str, str]:
        return self.dataset, self.threat, self.id


@dataclass(frozen=True)
class PublishedList:
    """Of the package: where its entries are from, and when they were read."""

    source: str
    date: str
    entries: tuple[Published, ...]


_LIST: TypeAdapter[PublishedList] = TypeAdapter(PublishedList)
_ENTRY: TypeAdapter[dict[str, Any]] = TypeAdapter(dict[str, Any])
_PUBLISHED: TypeAdapter[Published] = TypeAdapter(Published)


def packaged() -> PublishedList:
    return read_json(FILE, _LIST, "list of RobustBench's entries", "install robustvit anew")


def read_published(paths: Iterable[Path]) -> list[Published]:
    """Files such as model_info/cifar10/Linf/NAME.json, or folders of them."""
    files: list[Path] = []
    for path in paths:
        inside = sorted(path.rglob("*.json")) if is_folder(path) else [path]
        if not inside:
            raise UserError(f"{path}: holds no JSON files of RobustBench, such as model_info/cifar10/Linf/NAME.json")
        files += inside
    entries = []
    for file in files:
        what, remedy = "model of RobustBench", "name files such as model_info/cifar10/Linf/NAME.json"
        content = read_json(file, _ENTRY, what, remedy)
        known = {name: value for name, value in content.items() if name in Published.__dataclass_fields__}
        place = {"threat": file.resolve().parent.name, "id": file.stem, "venue": known.get("venue") or ""}
        entries.append(conforming({**known, **place}, _PUBLISHED, file, what, remedy))
    return entries


def merged_entries(packaged_ones: Sequence[Published], given: Sequence[Published]) -> list[Published]:
    """Those of the package, replaced by what the user gave of the same name."""
    return list({entry.key: entry for entry in (*packaged_ones, *given)}.values())


def write_published(folder: Path, entries: Sequence[Published]) -> list[Path]:
    """Each as folder/DATASET/THREAT/ID.json, in the form of RobustBench's model_info."""
    paths = []
    for entry in entries:
        path = folder / entry.dataset / entry.threat / f"{entry.id}.json"
        content = {
            "link": entry.link,
            "name": entry.name,
            "authors": entry.authors,
            "additional_data": entry.additional_data,
            "number_forward_passes": 1,
            "dataset": entry.dataset,
            "venue": entry.venue,
            "architecture": entry.architecture,
            "eps": entry.eps,
            "clean_acc": _text(entry.clean_acc),
            "reported": _text(entry.autoattack_acc),
            "autoattack_acc": _text(entry.autoattack_acc),
        }
        write_json(path, content)
        paths.append(path)
    return paths


def _text(percent: float | None) -> str:
    return "" if percent is None else f"{percent:.2f}"

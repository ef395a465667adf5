"""Some of a data set: classes (ImageNet-100) and images (RobustBench's 5,000) by a list, the same for all data."""

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from robustvit.core.binary import map_array
from robustvit.core.component import settings
from robustvit.core.errors import UserError, nearest
from robustvit.core.files import is_file
from robustvit.core.readers import read_text
from robustvit.data.base import Images, Subset, class_names, known_labels
from robustvit.data.labels import SYNSET
from robustvit.data.pictures import SUFFIXES

Wanted = Path | tuple[int | str, ...]
"""A file with one a line, or the list itself."""


@settings
class Selection:
    """Classes, images, or those images that belong to those classes."""

    classes: Wanted | None = None
    """Names (of an ImageNet class, its synset is enough) or numbers; labels are numbered anew, in this order."""
    images: Wanted | None = None
    """Names (CLASS/FILE in folders, keys in shards) or positions in the split (also .npy); they keep this order."""


def selected(images: Images, wanted: Selection | None) -> Images:
    """What is wanted of the images; no pixel is read."""
    if wanted is None or (wanted.classes is None and wanted.images is None):
        return images
    rows, title = torch.arange(len(images)), images.title
    if wanted.images is not None:
        if isinstance(wanted.images, Path) and wanted.images.suffix == ".npy":
            rows = _array_positions(wanted.images, len(images), title)
        else:
            names = getattr(images, "names", None)
            decoded = map(os.fsdecode, () if names is None else names)
            rows = _positions("images", wanted.images, decoded, _image_keys, len(images), title)
        title += f", {len(rows)} images of {_source(wanted.images)}"
    if wanted.classes is None:
        return Subset(images, rows, title)
    labels = known_labels(images, torch.arange(len(images)))
    assert labels is not None, "every data set that can be named knows its labels"
    names = list(class_names(images) or ())
    total = max(images.num_classes or len(names), int(labels.max()) + 1)
    classes = _positions("classes", wanted.classes, names, _class_keys, total, images.title)
    number = torch.full((total,), -1)
    number[classes] = torch.arange(len(classes))
    new = number[labels[rows]]
    title += f", {len(classes)} classes of {_source(wanted.classes)}"
    if not (new >= 0).any():
        raise UserError(f"{title}: holds no images")
    chosen = tuple(names[position] for position in classes.tolist()) if names else None
    return Subset(images, rows[new >= 0], title, new[new >= 0], len(classes), chosen)


def _positions(
    field: str, wanted: Wanted, names: Iterable[str], keys: Callable[[str], tuple[str, str]], total: int, title: str
) -> Tensor:
    """Positions of what is wanted: all are names or all are numbers; what could be both is a name."""
    where, entries = f"data.select.{field}: {title}", _entries(wanted, field)
    places: dict[str, list[int]] = {keys(entry)[0]: [] for entry in entries}
    for position, name in enumerate(names):
        for key in places.keys() & keys(name):
            places[key].append(position)
    matches = [places[keys(entry)[0]] for entry in entries]
    unclear = next((number for number, positions in enumerate(matches) if len(positions) != 1), None)
    if unclear is None:
        positions = [position for (position,) in matches]
    elif all(entry.isascii() and entry.isdigit() for entry in entries):
        positions = [int(entry) for entry in entries]
    elif matches[unclear]:
        raise UserError(f"{where} has {len(matches[unclear])} called '{entries[unclear]}': which one?")
    else:
        hint = nearest(entries[unclear], names) if isinstance(names, list) else ""
        raise UserError(f"{where} has no '{entries[unclear]}'{hint}")
    if max(positions) >= total:
        raise UserError(f"{where} has no number {max(positions)}; they run from 0 to {total - 1}")
    twice, times = Counter(positions).most_common(1)[0]
    if times > 1:
        raise UserError(f"{where}: '{entries[positions.index(twice)]}' is wanted {times} times")
    return torch.tensor(positions)


def _array_positions(path: Path, total: int, title: str) -> Tensor:
    """Millions of positions, which text would take long to read."""
    where = f"data.select.images: {path}"
    if not is_file(path):
        raise UserError(f"data.select.images: no file '{path}'")
    positions = map_array(path)
    if positions.ndim != 1 or positions.dtype.kind not in "iu" or len(positions) == 0:
        raise UserError(f"{where}: positions are whole numbers in a row, not {positions.dtype} {positions.shape}")
    outside = positions[(positions < 0) | (positions >= total)]
    if len(outside):
        raise UserError(f"{where} wants number {outside[0]}; those of {title} run from 0 to {total - 1}")
    if len(np.unique(positions)) < len(positions):
        raise UserError(f"{where}: an image is wanted several times")
    return torch.from_numpy(positions.astype(np.int64))


def _entries(wanted: Wanted, field: str) -> list[str]:
    if isinstance(wanted, Path) and not is_file(wanted):
        raise UserError(f"data.select.{field}: no file '{wanted}'; a name or number a line is expected in it")
    lines = read_text(wanted).splitlines() if isinstance(wanted, Path) else map(str, wanted)
    lines = [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]
    if not lines:
        raise UserError(f"data.select.{field}: {_source(wanted)} is empty")
    return lines


def _class_keys(text: str) -> tuple[str, str]:
    """What a class is called by: a synset, whatever words come after it, and these."""
    synset = SYNSET.fullmatch(text)
    return (synset[1], synset[2] or text) if synset else (text, text)


def _image_keys(text: str) -> tuple[str, str]:
    """A path without its split and its suffix, as lists and data sets write both or neither, and its last part."""
    text = re.sub(r"^(\./)?((train|val|validation|test)/)?", "", text)
    stem, suffix = os.path.splitext(text)
    key = stem if suffix.lower() in SUFFIXES else text
    return key, key.rpartition("/")[2]


def _source(wanted: Wanted) -> str:
    return wanted.name if isinstance(wanted, Path) else "a list"

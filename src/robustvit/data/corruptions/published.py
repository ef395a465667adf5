"""Published corrupted sets, read as they are: CIFAR-10-C's arrays and ImageNet-C's folders."""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path, PurePath
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from robustvit.core.binary import map_array
from robustvit.core.errors import UserError, shortened
from robustvit.core.files import is_file, is_folder
from robustvit.data.base import Images, Subset, known_labels
from robustvit.data.corruptions.base import SEVERITIES
from robustvit.data.folder import list_classes
from robustvit.data.labels import SYNSET
from robustvit.data.pictures import Files, Pictures
from robustvit.data.preprocess import Preprocess

LABELS = "labels.npy"


class CorruptedImages(Protocol):
    """A set under one corruption at one severity; rows count from 0 under each of them."""

    def take(self, rows: Tensor) -> Tensor:
        """(n, 3, H, W) uint8."""

    def state(self, rows: Tensor) -> str:
        """Another text when files of these rows have changed, without reading them."""


@dataclass(frozen=True)
class PublishedSet:
    """Corrupted versions of one set of images, in the same order under every corruption."""

    title: str
    labels: Tensor = field(repr=False)
    names: Sequence[str] | None = field(repr=False)
    """Of the files; None: images are known by their place."""
    parts: dict[tuple[str, int], CorruptedImages] = field(repr=False)
    """By corruption and severity."""

    def rows(self, images: Images) -> Tensor:
        """(len(images),) where the corrupted version of each image of the original data is."""
        whole, places = _whole(images)
        known = getattr(whole, "names", None)
        if self.names is not None and known is not None:
            return self._rows_by_name([os.fsdecode(known[place]) for place in places.tolist()], images.title)
        if len(whole) != len(self.labels):
            raise UserError(
                f"source: '{self.title}' has {len(self.labels):,} images of each corruption and severity, "
                f"{whole.title} has {len(whole):,}; evaluate on the data that they were made from"
            )
        labels = known_labels(whole, torch.arange(len(whole)))
        other = [] if labels is None else (labels != self.labels).nonzero().flatten().tolist()
        if other and labels is not None:
            raise UserError(
                f"source: '{self.title}' says that image {other[0]} is of class {self.labels[other[0]]}, {whole.title} "
                f"says {labels[other[0]]}; they are other images, or in another order"
            )
        return places

    def _rows_by_name(self, wanted: Sequence[str], title: str) -> Tensor:
        assert self.names is not None
        own, theirs = _keys(wanted), _keys(self.names)
        stems = [[key.rpartition("/")[2] for key in keys] for keys in (own, theirs)]
        if all(len(set(some)) == len(some) for some in stems):  # folders may be called otherwise, or not be there
            own, theirs = stems
        places = {key: row for row, key in enumerate(theirs)}
        lacking = next((key for key in own if key not in places), None)
        if lacking is not None:
            raise UserError(
                f"source: '{self.title}' has no corrupted version of '{shortened(lacking, 60)}' of {title}; "
                "evaluate on the data that they were made from"
            )
        rows = [places[key] for key in own]
        self._check_classes(wanted, rows, title)
        return torch.tensor(rows)

    def _check_classes(self, wanted: Sequence[str], rows: Sequence[int], title: str) -> None:
        """Where both sides name an image's class by a synset, it is the same one."""
        assert self.names is not None
        for name, row in zip(wanted, rows, strict=True):
            own, theirs = (SYNSET.fullmatch(PurePath(one).parent.name) for one in (name, self.names[row]))
            if own is not None and theirs is not None and own[1] != theirs[1]:
                raise UserError(
                    f"source: '{self.title}' has '{shortened(PurePath(name).name, 60)}' as class {theirs[1]}, {title} "
                    f"as {own[1]}; evaluate on the data that they were made from"
                )


def _keys(names: Sequence[str]) -> list[str]:
    """Without suffixes, which differ between the images and their corrupted versions."""
    return [PurePath(name).with_suffix("").as_posix() for name in names]


def open_published(folder: Path, wanted: Sequence[tuple[str, int]]) -> PublishedSet:
    """With every corruption and severity that is wanted, or an error that names those that are missing."""
    if not is_folder(folder):
        raise UserError(f"source: no folder '{folder}'; expected {LABELS} and NAME.npy, or NAME/SEVERITY/CLASS/*.JPEG")
    return _open_arrays(folder, wanted) if is_file(folder / LABELS) else _open_folders(folder, wanted)


def _whole(images: Images) -> tuple[Images, Tensor]:
    """The split that a selection was taken from, and its places there."""
    if not isinstance(images, Subset):
        return images, torch.arange(len(images))
    whole, places = _whole(images.of)
    return whole, places[images.indices]


@dataclass(frozen=True)
class _ArrayPart:
    path: Path
    begin: int

    def take(self, rows: Tensor) -> Tensor:
        state = self.path.stat()
        array = _mapped(self.path, state.st_size, state.st_mtime_ns)
        pictures = np.ascontiguousarray(array[self.begin + rows.numpy()])
        return torch.from_numpy(pictures).permute(0, 3, 1, 2).contiguous()

    def state(self, rows: Tensor) -> str:
        state = self.path.stat()
        return f"{self.path.name} {state.st_size} {state.st_mtime_ns} from {self.begin}"


@lru_cache(maxsize=32)
def _mapped(path: Path, size: int, time: int) -> np.ndarray:
    """Size and time of the file tell it from another one that has replaced it."""
    return map_array(path)


def _open_arrays(folder: Path, wanted: Sequence[tuple[str, int]]) -> PublishedSet:
    names = list(dict.fromkeys(name for name, _ in wanted))
    _refuse_missing(folder, [f"{name}.npy" for name in names if not is_file(folder / f"{name}.npy")])
    labels, times = np.asarray(map_array(folder / LABELS)), len(SEVERITIES)
    if labels.ndim != 1 or labels.dtype.kind not in "iu" or len(labels) % times or not len(labels):
        raise UserError(
            f"{folder / LABELS}: whole labels are expected, {times} times those of the set, not {labels.dtype} "
            f"{labels.shape}"
        )
    if not (labels.reshape(times, -1) == labels[: len(labels) // times]).all():
        raise UserError(f"{folder / LABELS}: the labels of the five severities differ, which are of the same images")
    for name in names:
        array = map_array(folder / f"{name}.npy")
        if array.dtype != np.uint8 or array.ndim != 4 or array.shape[-1] != 3 or not array.size:
            raise UserError(f"{folder / name}.npy: images must be uint8 (N, H, W, 3), not {array.dtype} {array.shape}")
        if len(array) != len(labels):
            raise UserError(f"{folder / name}.npy: has {len(array):,} images, {LABELS} has {len(labels):,} labels")
    count = len(labels) // times
    parts: dict[tuple[str, int], Any] = {
        (name, severity): _ArrayPart(folder / f"{name}.npy", (severity - 1) * count) for name, severity in wanted
    }
    return PublishedSet(str(folder), torch.from_numpy(labels[:count].astype(np.int64)), None, parts)


@dataclass(frozen=True)
class _FolderPart:
    pictures: Pictures

    def take(self, rows: Tensor) -> Tensor:
        return self.pictures.take(rows)[0]

    def state(self, rows: Tensor) -> str:
        try:
            lines = self.pictures.describe(rows)
        except OSError as error:
            raise UserError(f"source: '{error.filename}' is missing, which other corruptions have") from None
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _open_folders(folder: Path, wanted: Sequence[tuple[str, int]]) -> PublishedSet:
    found = {(name, severity): _folder_of(folder, name, severity) for name, severity in wanted}
    _refuse_missing(folder, [f"{name}/{severity}" for (name, severity), path in found.items() if path is None])
    roots = {key: path for key, path in found.items() if path is not None}
    first = next(iter(roots.values()))
    names, labels, classes = list_classes(first)
    if not names:
        raise UserError(f"{first}: holds no images; expected CLASS/*.JPEG below it")
    y = torch.tensor(labels)
    parts: dict[tuple[str, int], Any] = {
        key: _FolderPart(Pictures(Files(path, names), y, Preprocess(), str(path), len(classes)))
        for key, path in roots.items()
    }
    return PublishedSet(str(folder), y, names, parts)


def _folder_of(folder: Path, name: str, severity: int) -> Path | None:
    """`NAME/SEVERITY`, which published archives have below a folder of the group."""
    inside = [folder / name, *sorted(path / name for path in folder.iterdir() if path.is_dir())]
    return next((path / str(severity) for path in inside if is_folder(path / str(severity))), None)


def _refuse_missing(folder: Path, missing: Sequence[str]) -> None:
    if missing:
        shown = ", ".join(missing[:4]) + (f" and {len(missing) - 4} more" if len(missing) > 4 else "")
        raise UserError(f"source: '{folder}' lacks {shown}; `which` and `severities` choose others")

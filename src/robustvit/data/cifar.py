"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009): the published batches as torchvision unpacks them, or tar shards."""

import _codecs
import hashlib
import pickle
from dataclasses import replace
from glob import escape
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import torch

from robustvit.core.component import component, settings
from robustvit.core.errors import UserError, first_line
from robustvit.core.files import is_file
from robustvit.core.result import NOT_PUBLISHED
from robustvit.data.arrays import InMemory
from robustvit.data.base import Images, Split
from robustvit.data.preprocess import Preprocess
from robustvit.data.published import Published
from robustvit.data.select import selected
from robustvit.data.shards import find_split, open_shards

_WHOLE = {"train": 50_000, "test": 10_000}


@settings
class _Cifar(Published):
    num_classes: ClassVar[int]
    batches: ClassVar[dict[Split, list[str]]]
    """The published files of a split."""
    labels_key: ClassVar[str]
    meta: ClassVar[tuple[str, str]]
    """The file with the names of the classes, and their key in it."""
    published: ClassVar[dict[Split, str]] = {}
    """`records_sha256` of the published images of a split, where known."""

    def open(self, split: Split) -> Images:
        home, title = str(self.homes()[0]), f"{self.name}/{split}"
        shards, pattern = find_split(f"{escape(home)}/{{split}}-*.tar*", split)
        pattern = f"{home}/{pattern.rpartition('/')[2]}"
        folder = self.find() if shards else self.find_or_fetch([pattern])
        if folder is None:
            images: Images = open_shards(shards, f"{title} of {pattern}", Preprocess(), self.num_classes)
        else:
            images = self._read(split, folder, f"{title} of {folder}")
        difference = self._difference(images, split)
        if difference:
            images = replace(cast(Any, images), title=f"{images.title} ({NOT_PUBLISHED}: {difference})")
        return selected(images, self.select)

    def _difference(self, images: Images, split: Split) -> str:
        """From the published images; empty where there is none, or where their digest isn't known."""
        if len(images) != _WHOLE[split]:
            return f"{len(images):,} instead of {_WHOLE[split]:,}"
        pixels, _ = images.take(torch.tensor([0]))
        if pixels.shape[1:] != (3, 32, 32):  # known without decoding what may be large pictures
            return f"{pixels.shape[3]}x{pixels.shape[2]} pixels instead of 32x32"
        known = self.published.get(split)
        return "" if known in (None, records_sha256(images)) else "pixels, labels or order differ"

    def _read(self, split: Split, folder: Path, title: str) -> InMemory:
        lacking = [name for name in self.batches[split] if not is_file(folder / name)]
        if lacking:
            raise UserError(f"{folder}: lacks {', '.join(lacking)}; unpack the archive anew, or remove the folder")
        images, labels = [], []
        for path in (folder / name for name in self.batches[split]):
            batch = _read_batch(path)
            data, classes = batch.get("data"), batch.get(self.labels_key)
            if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != 3072:
                raise UserError(f"{path}: its 'data' must be uint8 (N, 3072)")
            if not isinstance(classes, list) or len(classes) != len(data) or {*map(type, classes)} - {int}:
                raise UserError(f"{path}: its '{self.labels_key}' must be a list of {len(data)} labels")
            images.append(data.reshape(-1, 3, 32, 32))
            labels += classes
        file, key = self.meta
        names = _read_batch(folder / file).get(key) if is_file(folder / file) else None
        if names is not None and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
            raise UserError(f"{folder / file}: its '{key}' must be a list of names")
        pixels = torch.from_numpy(np.concatenate(images))
        return InMemory(pixels, torch.tensor(labels, dtype=torch.int64), title, self.num_classes, names)


@component("data", "cifar10")
class Cifar10(_Cifar):
    """CIFAR-10: cifar-10-batches-py (torchvision's), or train-*.tar* and test-*.tar* (or val-*)."""

    folder, megabytes, torchvision_name = "cifar-10-batches-py", 170, "CIFAR10"
    num_classes, labels_key, meta = 10, "labels", ("batches.meta", "label_names")
    batches: ClassVar = {"train": [f"data_batch_{number}" for number in range(1, 6)], "test": ["test_batch"]}
    # test: that of test_batch.bin; train: of data_batch_1.bin to data_batch_5.bin, one after the other
    published: ClassVar = {
        "train": "a0181da372c0d63a5920fdbea2ec3f83ecbc552d378218e1cb473cf634941a3b",
        "test": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
    }


@component("data", "cifar100")
class Cifar100(_Cifar):
    """CIFAR-100 with its 100 fine labels: cifar-100-python (torchvision's), or train-*.tar* and test-* (or val-*)."""

    folder, megabytes, torchvision_name = "cifar-100-python", 169, "CIFAR100"
    num_classes, labels_key, meta = 100, "fine_labels", ("meta", "fine_label_names")
    batches: ClassVar = {"train": ["train"], "test": ["test"]}


def records_sha256(images: Images) -> str:
    """Of all images as records of CIFAR-10's binary version: a byte for the label, then red, green and blue planes."""
    hashed = hashlib.sha256()
    for chunk in torch.split(torch.arange(len(images)), 1024):
        pixels, labels = images.take(chunk)
        hashed.update(torch.cat([labels.to(torch.uint8).unsqueeze(1), pixels.flatten(1)], 1).numpy().tobytes())
    return hashed.hexdigest()


_RECONSTRUCT = np.empty(0).__reduce__()[0]
_ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): _codecs.encode,  # how Python 3 writes bytes for Python 2
}


class _Restricted(pickle.Unpickler):
    """A pickle can run code: here it can only make numbers, text, lists and arrays."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no batch needs")
        return _ALLOWED[module, name]


def _read_batch(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            content = _Restricted(file, encoding="latin1").load()
    except Exception as error:  # broken pickles raise whatever their opcodes run into
        raise UserError(f"{path}: not a whole batch of CIFAR's ({first_line(error)})") from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: not a batch of CIFAR's but {type(content).__name__}")
    return content

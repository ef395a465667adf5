"""What users hand in as data: a name, a path, a pair of tensors, a torch Dataset."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from robustvit.core.component import build, registered
from robustvit.core.errors import UserError, nearest
from robustvit.core.files import is_folder
from robustvit.data.base import Dataset, Images, Split
from robustvit.data.memory import from_pair, from_torch


def dataset_by_name(text: str) -> Dataset:
    """A registered name, a folder of pictures, an .npz or .npy file, or tar shards by a pattern."""
    if text in registered("data"):
        kind = None
    elif text.endswith((".npz", ".npy")):
        kind = "arrays"
    elif is_folder(Path(text)):
        kind = "folder"
    elif ".tar" in Path(text).name or text.endswith(".tgz"):
        kind = "shards"
    else:
        raise UserError(
            f"no data '{text}': neither a folder nor an .npz or .npy file nor tar shards nor a known name"
            f"{nearest(text, list(registered('data')))}"
        )
    made: Dataset = build("data", {"name": text} if kind is None else {"name": kind, "path": text})
    return made


def images_from(data: Any, split: Split = "test") -> Images:
    """Random access to whatever was handed in."""
    if isinstance(data, str | Path):
        return dataset_by_name(str(data)).open(split)
    if isinstance(data, Mapping) or type(data) in registered("data").values():
        made: Dataset = build("data", data)
        return made.open(split)
    if isinstance(data, tuple | list) and len(data) == 2:
        return from_pair(*data)
    if isinstance(data, torch.utils.data.Dataset):
        return from_torch(data)
    if not (hasattr(data, "take") and hasattr(data, "num_classes")):
        raise UserError(
            f"data: a name, a path, a map with 'name', a pair (x, y) or a torch Dataset, not {type(data).__name__}"
        )
    images: Images = data
    return images

"""CIFAR's batches are pickles, and a pickle can run code: here it can only make numbers, text, lists and arrays."""

import _codecs
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from robustvit.core.errors import UserError, first_line

_RECONSTRUCT = np.empty(0).__reduce__()[0]
_ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): _codecs.encode,  # how Python 3 writes bytes for Python 2
}


class _Restricted(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no batch needs")
        return _ALLOWED[module, name]


def read_batch(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            content = _Restricted(file, encoding="latin1").load()
    except Exception as error:  # broken pickles raise whatever their opcodes run into
        raise UserError(f"{path}: not a whole batch of CIFAR's ({first_line(error)})") from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: not a batch of CIFAR's but {type(content).__name__}")
    return content

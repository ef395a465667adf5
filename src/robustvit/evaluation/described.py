"""What tells one change of images or model from another, the same in every session."""

import functools
import hashlib
import math
import operator
import sys
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from robustvit.models import fingerprint


class UndescribedError(ValueError):
    """Nothing would tell this value from another one."""


def described(value: Any) -> Any:
    """Plain data: functions by name, partials and dataclasses by their parts, arrays and networks by their content."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [described(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted((described(item) for item in value), key=repr)
    if isinstance(value, Mapping):
        return {str(key): described(item) for key, item in value.items()}
    if isinstance(value, FunctionType | type):
        return _imported(value)
    if isinstance(value, MethodType):
        return {"method": value.__name__, "of": described(value.__self__)}
    if isinstance(value, functools.partial):
        return {"partial": described(value.func), "args": described(value.args), "keywords": described(value.keywords)}
    if isinstance(value, Tensor | np.ndarray):
        return _content(value)
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if isinstance(value, nn.Module):
        return {"type": kind, "sha256": fingerprint(value)}
    if is_dataclass(value):
        return {"type": kind, **{field.name: described(getattr(value, field.name)) for field in fields(value)}}
    return {"type": kind, "repr": _shown(value)}


def _imported(value: Any) -> str:
    """The name under which any session finds it; a lambda, or a function made by another, has none."""
    module, name = value.__module__, value.__qualname__
    try:
        found = operator.attrgetter(name)(sys.modules[module])
    except (AttributeError, KeyError):
        found = None
    if found is not value:
        raise UndescribedError(f"{module}.{name} is made inside of a function, or a lambda")
    return f"{module}.{name}"


def _content(value: Tensor | np.ndarray) -> dict[str, Any]:
    array = (
        value.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy() if isinstance(value, Tensor) else value
    )
    sha256 = hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
    return {"shape": list(value.shape), "dtype": str(value.dtype), "sha256": sha256}


def _shown(value: Any) -> str:
    text = str(value) if isinstance(value, Path) else repr(value)
    if " at 0x" in text:
        raise UndescribedError(f"the repr of a {type(value).__qualname__} doesn't show its settings")
    return text

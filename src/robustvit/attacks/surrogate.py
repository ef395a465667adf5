"""Another model, on which images are crafted: a field's value that names its content, not only its place."""

import copy
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import PlainValidator
from torch import Tensor, nn

from robustvit.core.errors import UserError
from robustvit.core.files import is_file
from robustvit.models import fingerprint, load_model
from robustvit.models.weights import file_sha256


@dataclass(frozen=True)
class Surrogate:
    """By the file of its weights, or as a module of pixels in [0, 1]."""

    source: str
    digest: str
    module: nn.Module | None = None

    def __str__(self) -> str:
        return f"{self.source}#{self.digest}"

    def __repr__(self) -> str:
        return f"'{self}'"

    def beside(self, x: Tensor) -> nn.Module:
        """The module, or a copy of it on the device and in the precision of these images."""
        module = _loaded(Path(self.source), self.digest) if self.module is None else self.module
        floats = [value for value in module.state_dict().values() if value.is_floating_point()]
        if all(value.device == x.device and value.dtype == x.dtype for value in floats):
            return module
        return copy.deepcopy(module).to(x.device, x.dtype)


def parse_surrogate(value: Any) -> Surrogate:
    if isinstance(value, Surrogate):
        return value
    if isinstance(value, nn.Module):
        return Surrogate(type(value).__name__, fingerprint(value)[:8], value)
    if not isinstance(value, str | Path):
        raise UserError(f"a surrogate is a checkpoint's path or an nn.Module, not {value!r}")
    source, _, digest = str(value).partition("#")
    if not is_file(Path(source)):
        raise UserError(f"{source}: no such checkpoint; a surrogate is a .safetensors file or an nn.Module")
    found = file_sha256(Path(source))[:8]
    if digest not in ("", found):
        raise UserError(f"{source}: holds other weights now ({found}) than when it was named ({digest})")
    return Surrogate(source, found)


AnySurrogate = Annotated[Surrogate, PlainValidator(parse_surrogate)]


@lru_cache(maxsize=2)
def _loaded(path: Path, digest: str) -> nn.Module:
    return load_model(path)

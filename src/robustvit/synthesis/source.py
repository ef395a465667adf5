"""Where a denoiser comes from: a run folder, its weights, or a checkpoint of NVlabs."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from robustvit.core.errors import UserError
from robustvit.core.files import is_file, is_folder
from robustvit.core.run import RunFolder
from robustvit.synthesis.denoiser import Denoiser, load_denoiser
from robustvit.synthesis.published import LICENSE, load_published


@dataclass(frozen=True)
class Source:
    """A file with the weights of a denoiser."""

    path: Path
    sha256: str

    @property
    def is_published(self) -> bool:
        return self.path.suffix == ".pkl"

    @property
    def license(self) -> str | None:
        """Where it is known."""
        return LICENSE if self.is_published else None

    def load(self, quiet: bool = False) -> Denoiser:
        return load_published(self.path, quiet) if self.is_published else load_denoiser(self.path)


def open_source(given: str | Path) -> Source:
    """By the path of a run folder, a .safetensors file or a .pkl file."""
    path = Path(given)
    if is_folder(path):
        path = RunFolder(path).checkpoint("last")
    elif not is_file(path) or path.suffix not in (".safetensors", ".pkl"):
        expected = "a run folder of a denoiser, its weights (.safetensors) or a checkpoint of NVlabs (.pkl)"
        raise UserError(f"{path}: expected {expected}; robustvit train digits/edm makes one")
    with path.open("rb") as file:
        return Source(path, hashlib.file_digest(file, "sha256").hexdigest())

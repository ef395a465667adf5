"""A run is a folder of plain files: where each lies, and what machine made it."""

import os
import platform
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from robustvit.core.files import write_json
from robustvit.core.journal import Journal


@dataclass(frozen=True)
class RunFolder:
    """recipe.yaml, environment.json, metrics.jsonl, checkpoints/, eval/, analysis/: written by whoever works in it."""

    path: Path

    @property
    def recipe(self) -> Path:
        return self.path / "recipe.yaml"

    @property
    def metrics(self) -> Journal:
        return Journal(self.path / "metrics.jsonl")

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def evaluations(self) -> Path:
        return self.path / "eval"

    @property
    def analyses(self) -> Path:
        return self.path / "analysis"

    def lock(self, activity: str) -> Path:
        return self.path / f".{activity}.lock"

    def write_environment(self) -> None:
        write_json(self.path / "environment.json", environment())


def versions() -> dict[str, str]:
    """The versions that a number depends on."""
    names = ("robustvit", "torch", "timm", "numpy")
    return {"python": platform.python_version(), **{name: _version(name) for name in names}}


def environment() -> dict[str, Any]:
    import torch

    return {
        "versions": versions(),
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "command": command(),
    }


def command() -> str:
    """The command line of this process, to be copied."""
    import shlex

    return shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"

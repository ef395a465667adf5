"""A run is a folder of plain files: where each lies, and what machine made it."""

import os
import platform
import re
import shlex
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter
from typing_extensions import TypedDict

from robustvit.core.config import Tree, read_yaml
from robustvit.core.errors import UserError, short_repr
from robustvit.core.files import is_file, write_json, write_text
from robustvit.core.journal import Journal
from robustvit.core.readers import read_text, unreadable


class _Metrics(TypedDict):
    """What every row of metrics.jsonl has."""

    total_step: Annotated[int, Field(ge=0, strict=True)]


LONGEST_GROUP, MOST_GROUP = 60, 1000
"""Letters of a group's name, and bytes of its file."""
METRICS: TypeAdapter[_Metrics] = TypeAdapter(_Metrics)


@dataclass(init=False, unsafe_hash=True)
class RunFolder:
    """Where the files of a run are; they are written by whoever works in it."""

    path: Path

    def __init__(self, path: Path) -> None:
        self.path = path
        self.recipe = path / "recipe.yaml"
        self.environment = path / "environment.json"
        self.group = path / "group.txt"
        self.metrics = Journal(path / "metrics.jsonl", METRICS)
        self.checkpoints, self.evaluations, self.analyses = path / "checkpoints", path / "eval", path / "analysis"

    def read_recipe(self) -> Tree:
        if not is_file(self.recipe):
            raise UserError(f"{self.path}: no run folder (it has no recipe.yaml)")
        return read_yaml(self.recipe)

    def checkpoint(self, name: str | None = None) -> Path:
        """The weights of this name; by default those that the run's recipe selects."""
        rules = self.read_recipe().get("checkpoints", {})
        if not isinstance(rules, Mapping):
            raise UserError(f"{self.recipe} has checkpoints: {rules}, where settings such as select: best belong")
        name = name or rules.get("select", "last")
        file = self.checkpoints / f"{name}.safetensors"
        if not is_file(file):
            known = ", ".join(sorted(path.stem for path in self.checkpoints.glob("*.safetensors"))) or "none yet"
            advice = "train it to the end or name another"
            raise UserError(f"{self.path}: no checkpoint '{name}' (there: {known}); {advice}")
        return file

    def read_group(self) -> str:
        """The label of the runs that it is compared with; empty where it has none."""
        if not self.group.exists():
            return ""
        remedy = "remove it, or label the run anew with robustvit report --group"
        return checked_group(read_text(self.group, MOST_GROUP, remedy).removesuffix("\n"), f"{self.group}: ", remedy)

    def write_group(self, label: str) -> None:
        """Nothing removes the label."""
        if label:
            write_text(self.group, checked_group(label) + "\n")
        else:
            self.group.unlink(missing_ok=True)

    def lock(self, activity: str) -> Path:
        return self.path / f".{activity}.lock"

    def write_environment(self) -> None:
        import torch

        threads, cores = torch.get_num_threads(), os.cpu_count()
        machine = {"platform": platform.platform(), "processor": processor(), "cores": cores, "threads": threads}
        facts = {**machine, "command": command()}
        write_json(self.environment, {"versions": versions(), **facts})


def checked_group(label: str, where: str = "", remedy: str = "") -> str:
    if not label.strip() or not label.isprintable() or len(label) > LONGEST_GROUP:
        raise unreadable(
            f"{where}group", f"one line of at most {LONGEST_GROUP} letters, not {short_repr(label)}", remedy
        )
    return label


def versions() -> dict[str, str]:
    """The versions that a number depends on."""
    names = ("robustvit", "torch", "timm", "numpy")
    return {"python": platform.python_version(), **{name: _version(name) for name in names}}


def processor() -> str:
    """The name that its maker gave it, where the system says so."""
    with suppress(OSError):
        named = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
        if named:
            return named[1]
    return platform.processor() or platform.machine()


def cpu_seconds() -> float:
    """Of all threads of this process and of its children that have ended, such as data workers."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def command() -> str:
    """The command line of this process, to be copied."""
    path = Path(sys.argv[0])
    of_package = ["robustvit"] if path.parent.name == "robustvit" else ["python", "-m", path.parent.name]
    return shlex.join([*(of_package if path.name == "__main__.py" else [path.name]), *sys.argv[1:]])


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"

"""A model by its reference: where it comes from and what it holds, as a value that settings and results can store."""

import copy
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from robustvit.core.config import Tree, apply_overrides, validated
from robustvit.core.errors import UserError
from robustvit.core.run import RunFolder
from robustvit.models.create import ModelSettings
from robustvit.models.weights import load_model

_SETTINGS = ("num_classes", "img_size", "mean", "std")


@dataclass(frozen=True)
class ModelHints:
    """What the user knows of a model that its file doesn't say."""

    model: str | None = None
    """The timm model that a bare checkpoint belongs to."""
    num_classes: int | None = None
    img_size: int | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    random_weights: bool = False
    checkpoint: str | None = None
    """Of a run: best, last or an epoch's; None: what its recipe selects."""
    weights_key: str | None = None
    """The entry of a checkpoint that holds the weights, if several do."""
    overrides: tuple[str, ...] = ()
    """Further settings of the model, such as patch_size=4."""
    command_line: bool = False
    """Whether messages name the options of the command line."""

    def option(self, name: str) -> str:
        return f"--{name.replace('_', '-')}" if self.command_line else name

    def given(self, *names: str) -> list[str]:
        """Which of these the user gave, as they were written."""
        options = [self.option(name) for name in names if getattr(self, name)]
        return [*options, *(f"-o model.{override}" for override in self.overrides)]

    def refuse(self, name: str, why: str) -> None:
        if getattr(self, name):
            raise UserError(f"{self.option(name)} {getattr(self, name)}: {why}")

    def settings(self, name: str) -> ModelSettings:
        tree = {"name": name, **{key: getattr(self, key) for key in _SETTINGS if getattr(self, key) is not None}}
        made: ModelSettings = validated(ModelSettings, apply_overrides(tree, self.overrides), "model")
        return made


@dataclass(frozen=True)
class ModelRef:
    """Equal references have the same source and the same content."""

    source: str
    digest: str
    """Eight digits of the content's hash."""
    title: str = field(compare=False)
    """Short, fit for a folder's name."""
    checkpoint: dict[str, Any] = field(default_factory=dict, compare=False)
    """What a result stores: path, sha256, name, rule, epoch."""
    run: RunFolder | None = field(default=None, compare=False)
    recipe: Tree | None = field(default=None, compare=False)
    """The run's, as a plain tree."""
    file: Path | None = field(default=None, compare=False)
    """The weights, where they lie in a file."""
    hints: ModelHints = field(default=ModelHints(), compare=False)
    built: nn.Module | None = field(default=None, compare=False)
    """The model itself, where there is no file."""

    def __str__(self) -> str:
        return f"{self.source}#{self.digest}"

    def __repr__(self) -> str:
        return f"'{self}'"

    @property
    def folder(self) -> Path:
        """Where results go unless the user says otherwise."""
        return self.run.path if self.run is not None else Path("runs") / self.title

    def module(self) -> nn.Module:
        """In eval mode; loaded anew from its file, or the very module that was given."""
        if self.built is not None:
            return self.built
        assert self.file is not None, "a reference has a file or a module"
        settings = self.hints.settings(self.hints.model) if self.hints.model else None
        return load_model(self.file, settings, weights_key=self.hints.weights_key)

    def module_for(self, x: Tensor) -> nn.Module:
        """A shared module on the device and in the precision of these images."""
        module = _shared(self)
        floats = [value for value in module.state_dict().values() if value.is_floating_point()]
        if all(value.device == x.device and value.dtype == x.dtype for value in floats):
            return module
        return copy.deepcopy(module).to(x.device, x.dtype)


@lru_cache(maxsize=2)
def _load(ref: ModelRef) -> nn.Module:
    return ref.module()


def _shared(ref: ModelRef) -> nn.Module:
    return ref.built if ref.built is not None else _load(ref)

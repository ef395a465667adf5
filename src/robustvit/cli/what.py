"""What `robustvit evaluate` is pointed at: a run, a checkpoint, a timm name, a function of the user's."""

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from robustvit.core.config import read_yaml
from robustvit.core.errors import UserError, first_line
from robustvit.core.files import is_file, is_folder
from robustvit.core.run import RunFolder
from robustvit.models import ModelSettings, create_model, load_checkpoint, normalized
from robustvit.models.weights import file_sha256
from robustvit.threats import LpBall
from robustvit.training import recipe_from


@dataclass(frozen=True)
class Hints:
    """What the user knows of a model that a file doesn't say."""

    model: str | None = None
    num_classes: int | None = None
    img_size: int | None = None
    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None
    random_weights: bool = False
    checkpoint: str | None = None


@dataclass(frozen=True)
class Found:
    model: nn.Module
    name: str
    run: Path | None = None
    data: Any = None
    threat: LpBall | None = None
    checkpoint: dict[str, Any] = field(default_factory=dict)


def find_subject(what: str, hints: Hints) -> Found:
    path = Path(what)
    if is_folder(path):
        return _from_run(path, hints)
    if hints.checkpoint:
        raise UserError(f"--checkpoint {hints.checkpoint}: only a run folder has several")
    if path.suffix in (".safetensors", ".pt", ".pth"):
        return _from_checkpoint(path, hints)
    if ":" in what:
        return _from_function(what, hints)
    return _from_timm(what, hints)


def numbers(text: str | None, where: str) -> tuple[float, ...] | None:
    if text is None:
        return None
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise UserError(f"{where} {text}: numbers with commas between, such as 0.49,0.48,0.45") from None


def _from_run(path: Path, hints: Hints) -> Found:
    run = RunFolder(path)
    if not is_file(run.recipe):
        raise UserError(f"{path}: no run folder (it has no recipe.yaml)")
    recipe = recipe_from(read_yaml(run.recipe))
    name = hints.checkpoint or recipe.checkpoints.select
    file = run.checkpoints / f"{name}.safetensors"
    if not file.is_file():
        there = ", ".join(sorted(found.stem for found in run.checkpoints.glob("*.safetensors"))) or "none yet"
        raise UserError(f"{path}: no checkpoint '{name}' (there: {there}); train it to the end or choose --checkpoint")
    found = _from_checkpoint(file, hints)
    return Found(found.model, recipe.name, path, recipe.data, recipe.threat, {**found.checkpoint, "name": recipe.name})


def _from_checkpoint(path: Path, hints: Hints) -> Found:
    given = [
        f"--{name.replace('_', '-')}"
        for name in ("num_classes", "img_size", "mean", "std", "random_weights")
        if getattr(hints, name)
    ]
    if given and not hints.model:
        raise UserError(f"{given[0]}: {path} knows its own; only with --model NAME does it build another model")
    model, facts = load_checkpoint(path, _settings(hints) if hints.model else None)
    about = {"path": str(path), "sha256": file_sha256(path), "name": path.stem}
    return Found(
        model, path.stem, checkpoint={**about, **{key: facts[key] for key in ("rule", "epoch") if key in facts}}
    )


def _settings(hints: Hints) -> ModelSettings:
    assert hints.model is not None
    return ModelSettings(
        name=hints.model,
        num_classes=hints.num_classes,
        img_size=hints.img_size,
        mean=tuple(hints.mean) if hints.mean else None,
        std=tuple(hints.std) if hints.std else None,
    )


def _from_timm(name: str, hints: Hints) -> Found:
    import timm

    if "/" in name or not timm.is_model(name):
        known = "a run folder, a checkpoint (.safetensors, .pt), a timm model's name or module:function"
        raise UserError(f"'{name}' is not there: expected {known}")
    model = create_model(
        name,
        num_classes=hints.num_classes,
        img_size=hints.img_size,
        mean=hints.mean,
        std=hints.std,
        pretrained=not hints.random_weights,
    )
    of_weights = timm.get_pretrained_cfg_value(name, "num_classes")
    if not hints.random_weights and hints.num_classes not in (None, of_weights):
        raise UserError(
            f"the weights of '{name}' have {of_weights} classes; with --num-classes {hints.num_classes} its head would "
            "be random: fine-tune it first, or insist with --random-weights"
        )
    about = {
        "path": None,
        "name": name,
        "rule": "random weights" if hints.random_weights else "timm's pretrained weights",
    }
    return Found(model.eval(), name, checkpoint=about)


def _from_function(what: str, hints: Hints) -> Found:
    given = [name for name in ("model", "num_classes", "img_size", "random_weights") if getattr(hints, name)]
    if given:
        raise UserError(f"--{given[0].replace('_', '-')}: {what} builds its own model; say it there")
    module_name, _, function_name = what.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    try:
        if importlib.util.find_spec(module_name) is None:
            raise UserError(f"{what}: no module '{module_name}' on the path (the current folder is on it)")
        function = getattr(importlib.import_module(module_name), function_name, None)
        if not callable(function):
            raise UserError(f"{what}: module '{module_name}' has no function '{function_name}'")
        model = function()
    except UserError:
        raise
    except (Exception, SystemExit) as error:  # whatever the user's own code raises, told with its place
        *_, place = traceback.extract_tb(error.__traceback__)
        raise UserError(
            f"{what}: fails with {type(error).__name__}: {first_line(error)} ({place.filename}, line {place.lineno})"
        ) from error
    if not isinstance(model, nn.Module):
        raise UserError(f"{what}: must return an nn.Module, not {type(model).__name__}")
    if (hints.mean is None) != (hints.std is None):
        raise UserError("--mean and --std go together")
    if hints.mean is not None and hints.std is not None:
        model = normalized(model, hints.mean, hints.std)
    return Found(model.eval(), what.replace(":", "-"), checkpoint={"path": None, "name": what})

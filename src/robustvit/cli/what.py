"""What `robustvit evaluate` is pointed at: a run, a checkpoint, a timm name, a function of the user's."""

import importlib
import importlib.util
import re
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from robustvit.core.config import apply_overrides, read_yaml, validated
from robustvit.core.errors import UserError, first_line
from robustvit.core.files import is_file, is_folder
from robustvit.core.progress import say
from robustvit.core.run import RunFolder
from robustvit.models import ModelSettings, load_checkpoint, normalized
from robustvit.models.create import is_on_hub
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
    weights_key: str | None = None
    overrides: Sequence[str] = ()
    """Further settings of the model, such as patch_size=4."""

    def given(self, *names: str) -> list[str]:
        """Which of these the user gave, as they are written on the command line."""
        options = [f"--{name.replace('_', '-')}" for name in names if getattr(self, name)]
        return [*options, *(f"-o model.{override}" for override in self.overrides)]


CHECKPOINTS = (".safetensors", ".pt", ".pth", ".tar", ".ckpt", ".bin", ".pkl", ".pickle")


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
    if path.suffix in CHECKPOINTS and (is_file(path) or path.suffix in (".safetensors", ".pt", ".pth")):
        return _from_checkpoint(path, hints)
    if hints.weights_key:
        raise UserError(f"--weights-key {hints.weights_key}: only a checkpoint (.pt, .pth) has entries")
    if ":" in what and not is_on_hub(what):
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
    given = hints.given("num_classes", "img_size", "mean", "std", "random_weights")
    if given and not hints.model:
        raise UserError(f"{given[0]}: {path} knows its own; only with --model NAME does it build another model")
    model, facts = load_checkpoint(path, _settings(hints.model, hints) if hints.model else None, hints.weights_key)
    about = {"path": str(path), "sha256": file_sha256(path), "name": path.stem}
    return Found(
        model, path.stem, checkpoint={**about, **{key: facts[key] for key in ("rule", "epoch") if key in facts}}
    )


def _settings(name: str, hints: Hints) -> ModelSettings:
    names = ("num_classes", "img_size", "mean", "std")
    tree = {"name": name, **{key: getattr(hints, key) for key in names if getattr(hints, key) is not None}}
    return validated(ModelSettings, apply_overrides(tree, hints.overrides), "model")


def _from_timm(name: str, hints: Hints) -> Found:
    import timm

    if not is_on_hub(name) and ("/" in name or not timm.is_model(name)):
        known = (
            "a run folder, a checkpoint (.safetensors, .pt), a timm model's name, hf_hub:OWNER/NAME or module:function"
        )
        raise UserError(f"'{name}' is not there: expected {known}")
    try:
        model = _settings(name, hints).build(pretrained=not hints.random_weights)
    except UserError as error:
        if "pretrained weights" not in str(error):
            raise
        raise UserError(f"{error}; --random-weights takes the architecture without them") from None
    of_weights = (getattr(model.backbone, "pretrained_cfg", None) or {}).get("num_classes")
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
    return Found(model.eval(), re.sub(r"[:/]+", "-", name), checkpoint=about)


def _from_function(what: str, hints: Hints) -> Found:
    given = hints.given("model", "num_classes", "img_size", "random_weights")
    if given:
        raise UserError(f"{given[0]}: {what} builds its own model; say it there")
    if (hints.mean is None) != (hints.std is None):
        raise UserError("--mean and --std go together")
    module_name, _, function_name = what.rpartition(":")
    try:
        function = getattr(_imported(module_name, what), function_name, None)
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
    if hints.mean is not None and hints.std is not None:
        model = normalized(model, hints.mean, hints.std)
    else:
        say(f"{what}: gets pixels in [0, 1] as they are; --mean and --std would put a normalisation in front of it")
    name = f"{Path(module_name).stem}-{function_name}"
    return Found(model.eval(), name, checkpoint={"path": None, "name": what})


def _imported(name: str, what: str) -> Any:
    """A module by its name, the current folder first, or by the path of its file, whose folder then comes first."""
    if not name.endswith(".py"):
        sys.path.insert(0, str(Path.cwd()))
        if importlib.util.find_spec(name) is None:
            raise UserError(f"{what}: no module '{name}' on the path (the current folder is on it)")
        return importlib.import_module(name)
    file = Path(name).resolve()
    if not is_file(file):
        raise UserError(f"{what}: no file '{name}'")
    sys.path.insert(0, str(file.parent))
    module = importlib.import_module(file.stem)  # by its name, so that other processes find it again
    if Path(module.__file__ or "").resolve() != file:
        sys.path.remove(str(file.parent))
        raise UserError(f"{what}: '{file.stem}' is the name of another module ({module.__file__}); rename the file")
    return module

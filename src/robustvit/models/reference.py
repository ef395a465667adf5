"""One way to name a model, for the command line, YAML and Python alike."""

import glob
import importlib
import importlib.util
import re
import sys
import traceback
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from types import ModuleType
from typing import Annotated

from pydantic import PlainValidator
from torch import nn

from robustvit.core.errors import UserError, first_line
from robustvit.core.files import hash8, is_file, is_folder
from robustvit.core.progress import say
from robustvit.core.run import RunFolder
from robustvit.models.create import is_on_hub
from robustvit.models.model_ref import ModelHints, ModelRef
from robustvit.models.normalize import normalized
from robustvit.models.weights import file_sha256, fingerprint, load_facts

__all__ = ["RESOLVERS", "AnyModelRef", "ModelHints", "ModelRef", "Resolver", "resolve_model"]

KINDS = "a run folder, a checkpoint (.safetensors, .pt), a timm model's name, hf_hub:OWNER/NAME or module:function"
_CHECKPOINTS = (".safetensors", ".pt", ".pth")
Resolver = Callable[[str, ModelHints], ModelRef | None]
"""The reference that a text means, or None where it is of another kind."""


def resolve_model(value: str | Path | nn.Module | ModelRef, hints: ModelHints = ModelHints()) -> ModelRef:  # noqa: B008
    """A model by the text that names it: a run folder, a checkpoint, a timm or hub name, module:function; or itself.

    A path may be a pattern that matches one file. `SOURCE#DIGEST` insists on the content that the source had.
    """
    if isinstance(value, ModelRef):
        return value
    if isinstance(value, nn.Module):
        name = type(value).__name__
        return ModelRef(name, fingerprint(value)[:8], name, {"path": None, "name": name}, built=value)
    if not isinstance(value, str | Path):
        raise UserError(f"a model is named by text, by a path or an nn.Module, not {value!r}")
    text, digest = _split_digest(str(value))
    for resolver in RESOLVERS:
        ref = resolver(_expanded(text), hints)
        if ref is not None:
            break
    else:
        raise UserError(f"'{text}' is not there: expected {KINDS}")
    if digest not in ("", ref.digest):
        raise UserError(f"{text}: holds other weights now ({ref.digest}) than when it was named ({digest})")
    return replace(ref, source=text)


AnyModelRef = Annotated[ModelRef, PlainValidator(lambda value: resolve_model(value))]


def _split_digest(text: str) -> tuple[str, str]:
    match = re.fullmatch(r"(.+)#([0-9a-f]{8})", text)
    return (match[1], match[2]) if match and not Path(text).exists() else (text, "")


def _expanded(text: str) -> str:
    if not glob.has_magic(text) or Path(text).exists():
        return text
    paths = sorted(glob.glob(text))
    if len(paths) != 1:
        known = f"{len(paths)} files match ({', '.join(paths[:3])}{' ...' if len(paths) > 3 else ''})"
        raise UserError(f"{text}: {known if paths else 'no such checkpoint'}; a pattern must match one file")
    return paths[0]


def _from_run(text: str, hints: ModelHints) -> ModelRef | None:
    if not is_folder(Path(text)):
        return None
    run = RunFolder(Path(text))
    recipe = run.read_recipe()
    name = str(recipe.get("name", run.path.resolve().name))
    ref = _of_file(run.checkpoint(hints.checkpoint), hints)
    return replace(ref, title=name, checkpoint={**ref.checkpoint, "name": name}, run=run, recipe=recipe)


def _from_checkpoint(text: str, hints: ModelHints) -> ModelRef | None:
    path = Path(text)
    if not is_file(path) and path.suffix not in _CHECKPOINTS:
        return None
    hints.refuse("checkpoint", "only a run folder has several")
    return _of_file(path, hints)


def _of_file(path: Path, hints: ModelHints) -> ModelRef:
    given = hints.given("num_classes", "img_size", "mean", "std", "random_weights")
    if given and not hints.model:
        other = f"{hints.option('model')} NAME"
        raise UserError(f"{given[0]}: {path} knows its own; only with {other} does it build another model")
    if not is_file(path):
        raise UserError(f"{path}: no such checkpoint")
    facts, sha256 = load_facts(path), file_sha256(path)
    built_by = {**asdict(hints), "checkpoint": None, "command_line": None}
    digest = hash8([sha256, built_by]) if hints.model or hints.weights_key else sha256[:8]
    about = {"path": str(path), "sha256": sha256, "name": path.stem}
    about |= {key: facts[key] for key in ("rule", "epoch") if key in facts}
    return ModelRef(str(path), digest, path.stem, about, file=path, hints=hints)


def _from_function(text: str, hints: ModelHints) -> ModelRef | None:
    if ":" not in text or is_on_hub(text):
        return None
    _refuse_file_hints(hints)
    given = hints.given("model", "num_classes", "img_size", "random_weights")
    if given:
        raise UserError(f"{given[0]}: {text} builds its own model; say it there")
    if (hints.mean is None) != (hints.std is None):
        raise UserError(f"{hints.option('mean')} and {hints.option('std')} go together")
    module_name, _, function_name = text.rpartition(":")
    model = _called(text, module_name, function_name)
    if hints.mean is not None and hints.std is not None:
        model = normalized(model, hints.mean, hints.std)
    else:
        options = f"{hints.option('mean')} and {hints.option('std')}"
        say(f"{text}: gets pixels in [0, 1] as they are; {options} would put a normalization in front of it")
    title = f"{Path(module_name).stem}-{function_name}"
    return ModelRef(text, fingerprint(model)[:8], title, {"path": None, "name": text}, built=model.eval())


def _called(text: str, module_name: str, function_name: str) -> nn.Module:
    try:
        function = getattr(_imported(module_name, text), function_name, None)
        if not callable(function):
            raise UserError(f"{text}: module '{module_name}' has no function '{function_name}'")
        model = function()
    except UserError:
        raise
    except (Exception, SystemExit) as error:  # whatever the user's own code raises, with its place
        *_, place = traceback.extract_tb(error.__traceback__)
        raise UserError(
            f"{text}: fails with {type(error).__name__}: {first_line(error)} ({place.filename}, line {place.lineno})"
        ) from error
    if not isinstance(model, nn.Module):
        raise UserError(f"{text}: must return an nn.Module, not {type(model).__name__}")
    return model


def _imported(name: str, text: str) -> ModuleType:
    """A module by its name, the current folder first, or by the path of its file, whose folder then comes first."""
    if not name.endswith(".py"):
        sys.path.insert(0, str(Path.cwd()))
        if importlib.util.find_spec(name) is None:
            raise UserError(f"{text}: no module '{name}' on the path (the current folder is on it)")
        return importlib.import_module(name)
    file = Path(name).resolve()
    if not is_file(file):
        raise UserError(f"{text}: no file '{name}'")
    sys.path.insert(0, str(file.parent))
    module = importlib.import_module(file.stem)  # by its name, so that other processes find it again
    if Path(module.__file__ or "").resolve() != file:
        sys.path.remove(str(file.parent))
        raise UserError(f"{text}: '{file.stem}' is the name of another module ({module.__file__}); rename the file")
    return module


def _from_timm(text: str, hints: ModelHints) -> ModelRef | None:
    import timm

    from robustvit.models import registered  # noqa: F401 - the papers' models under timm's names

    _refuse_file_hints(hints)
    if not is_on_hub(text) and ("/" in text or not timm.is_model(text)):
        return None
    try:
        model = hints.settings(text).build(pretrained=not hints.random_weights)
    except UserError as error:
        if "pretrained weights" not in str(error) or not hints.command_line:
            raise
        raise UserError(f"{error}; --random-weights takes the architecture without them") from None
    of_weights = (getattr(model.backbone, "pretrained_cfg", None) or {}).get("num_classes")
    if not hints.random_weights and hints.num_classes not in (None, of_weights):
        raise UserError(
            f"the weights of '{text}' have {of_weights} classes; with {hints.option('num_classes')} "
            f"{hints.num_classes} its head would be random: fine-tune it first, or insist with "
            f"{hints.option('random_weights')}"
        )
    rule = "random weights" if hints.random_weights else "timm's pretrained weights"
    about = {"path": None, "name": text, "rule": rule}
    return ModelRef(text, fingerprint(model)[:8], re.sub(r"[:/]+", "-", text), about, built=model.eval())


def _refuse_file_hints(hints: ModelHints) -> None:
    hints.refuse("checkpoint", "only a run folder has several")
    hints.refuse("weights_key", "only a checkpoint (.pt, .pth) has entries")


RESOLVERS: list[Resolver] = [_from_run, _from_checkpoint, _from_function, _from_timm]
"""Tried in order; a further kind of source goes before the last."""

"""One way to name a model, for the command line, YAML and Python alike."""

import copy
import glob
import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import PlainValidator
from torch import Tensor, nn

from robustvit.core.component import load_plugins
from robustvit.core.config import Tree, validated
from robustvit.core.errors import UserError
from robustvit.core.files import hash8, is_file, is_folder
from robustvit.core.progress import say
from robustvit.core.run import RunFolder
from robustvit.models.create import ModelSettings, is_on_hub
from robustvit.models.function import called
from robustvit.models.hints import ModelHints
from robustvit.models.hub import (
    hub_folder,
    is_own,
    is_transformers,
    own_recipe,
    own_weights,
    read_config,
    transformers_model,
)
from robustvit.models.normalize import normalized
from robustvit.models.onnx import OnnxModel, is_onnx
from robustvit.models.weights import JAX, fingerprint, load_checkpoint, load_facts
from robustvit.models.zoo import PREFIX, zoo_weights


@dataclass(frozen=True)
class ModelRef:
    """A model by name; equal references have the same source and the same content."""

    source: str
    digest: str
    """Eight digits of the content's hash."""
    title: str = field(compare=False)
    """Short, fit for a folder's name."""
    checkpoint: dict[str, Any] = field(default_factory=dict, compare=False)
    """What a result stores: path, sha256, name, rule, epoch."""
    run: RunFolder | None = field(default=None, compare=False)
    recipe: Tree | None = field(default=None, compare=False)
    """The run's, as a plain tree, or the one that the file of weights holds."""
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
        mean, std = self.hints.mean, self.hints.std
        return load_checkpoint(self.file, settings, weights_key=self.hints.weights_key, mean=mean, std=std)

    def module_for(self, x: Tensor) -> nn.Module:
        """A shared module on the device and in the precision of these images."""
        module = self.built if self.built is not None else _loaded(self)
        floats = [value for value in module.state_dict().values() if value.is_floating_point()]
        if all(value.device == x.device and value.dtype == x.dtype for value in floats):
            return module
        return copy.deepcopy(module).to(x.device, x.dtype)


@lru_cache(maxsize=2)
def _loaded(ref: ModelRef) -> nn.Module:
    return ref.module()


def resolve_model(value: str | Path | nn.Module | ModelRef, hints: ModelHints = ModelHints()) -> ModelRef:  # noqa: B008
    """Resolve a model reference: a run folder, checkpoint, timm or hub name, module:function, or a module.

    A path may be a pattern that matches one file. `SOURCE#DIGEST` is an error if the content has another digest.
    """
    if isinstance(value, ModelRef):
        return value
    if isinstance(value, nn.Module):
        name = type(value).__name__
        return ModelRef(name, fingerprint(value)[:8], name, {"path": None, "name": name}, built=value)
    if not isinstance(value, str | Path):
        raise UserError(f"a model is named by text, by a path or an nn.Module, not {value!r}")
    text, digest = str(value), ""
    match = re.fullmatch(r"(.+)#([0-9a-f]{8})", text)
    if match and not Path(text).exists():
        text, digest = match.groups()
    load_plugins()  # which may resolve further kinds of names
    references = (resolver(_expanded(text), hints) for resolver in RESOLVERS)
    ref = next((ref for ref in references if ref is not None), None)
    if ref is None:
        kinds = "a run folder, a checkpoint (.safetensors, .pt, .npz, .onnx), zoo:NAME, a timm model's name"
        raise UserError(f"'{text}' is not there: expected {kinds}, hf_hub:OWNER/NAME or module:function")
    if digest not in ("", ref.digest):
        raise UserError(f"{text}: holds other weights now ({ref.digest}) than when it was named ({digest})")
    return replace(ref, source=text)


def load_model(
    source: str | Path | nn.Module | ModelRef, model_settings: ModelSettings | None = None, **hints: Any
) -> nn.Module:
    """The model that a reference names, in eval mode; `hints` are the fields of `ModelHints`.

    `model_settings` say how to build the model of a checkpoint that robustvit didn't write.
    """
    known: ModelHints = validated(ModelHints, hints, "load_model")
    if model_settings is not None and isinstance(source, str | Path):
        return load_checkpoint(source, model_settings, weights_key=known.weights_key)
    return resolve_model(source, known).module()


def distinct_titles(models: Sequence[ModelRef], *taken: str) -> list[str]:
    """Titles, with a digest where one could mean several; `taken` are names of others."""
    titles = [*taken, *(ref.title for ref in models)]
    named = [ref.title if titles.count(ref.title) == 1 else f"{ref.title}#{ref.digest}" for ref in models]
    return named if len(set(named)) == len(models) else [str(ref) for ref in models]  # copies of one file


AnyModelRef = Annotated[ModelRef, PlainValidator(lambda value: resolve_model(value))]


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
    if not is_file(path) and path.suffix not in (".safetensors", ".pt", ".pth", JAX):
        return None
    hints.refuse("only a run folder has several", "checkpoint")
    return _of_file(path, hints)


def _from_zoo(text: str, hints: ModelHints) -> ModelRef | None:
    if not text.startswith(PREFIX):
        return None
    hints.refuse("a model of the zoo has one", "checkpoint")
    name = text.removeprefix(PREFIX)
    path = zoo_weights(name)
    ref = _of_file(path, hints)
    return replace(ref, title=name, checkpoint={**ref.checkpoint, "name": text})


def _from_hub(text: str, hints: ModelHints) -> ModelRef | None:
    folder = hub_folder(text)
    if folder is None:
        return None
    config, title = read_config(folder), re.sub(r"[:/]+", "-", text).strip("-.")
    if is_own(config):
        hints.refuse("only a run folder has several", "checkpoint")
        ref = _of_file(own_weights(text, folder), hints)
        return replace(ref, title=title, checkpoint={**ref.checkpoint, "name": text}, recipe=own_recipe(text, folder))
    if is_transformers(config):
        model = transformers_model(text, hints)
        about = {"path": None, "name": text, "rule": "the weights of transformers"}
        return ModelRef(text, fingerprint(model)[:8], title, about, built=model)
    return _from_timm(text if is_on_hub(text) else f"local-dir:{text}", hints)


def _of_file(path: Path, hints: ModelHints) -> ModelRef:
    if not hints.model:
        why = f"{path} knows its own; only with {hints.option('model')} NAME does it build another model"
        hints.refuse(why, "num_classes", "img_size", "random_weights", "overrides")
        if path.suffix != JAX:
            hints.refuse(why, "mean", "std")
    if not is_file(path):
        raise UserError(f"{path}: no such checkpoint")
    facts = load_facts(path)
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    built_by = {**asdict(hints), "checkpoint": None, "command_line": None}
    digest = hash8([sha256, built_by]) if hints.model or hints.weights_key or hints.mean else sha256[:8]
    about = {"path": str(path), "sha256": sha256, "name": path.stem}
    about |= {key: facts[key] for key in ("rule", "epoch") if key in facts}
    recipe = facts.get("recipe")
    if hints.model or not isinstance(recipe, dict):  # with --model the weights become another model's
        recipe = None
    return ModelRef(str(path), digest, path.stem, about, recipe=recipe, file=path, hints=hints)


def _from_onnx(text: str, hints: ModelHints) -> ModelRef | None:
    path = Path(text)
    if not is_onnx(path):
        return None
    return _of_others(text, path.stem, hints, lambda: OnnxModel(path))


def _from_function(text: str, hints: ModelHints) -> ModelRef | None:
    if ":" not in text or is_on_hub(text):
        return None
    module_name, _, function_name = text.rpartition(":")
    title = f"{Path(module_name).stem}-{function_name}"
    return _of_others(text, title, hints, lambda: called(text, module_name, function_name))


def _of_others(text: str, title: str, hints: ModelHints, make: Callable[[], nn.Module]) -> ModelRef:
    """A model that comes as it is, of normalized images if the user says so."""
    hints.refuse_of_file()
    why = f"{text} builds its own model; say it there"
    hints.refuse(why, "model", "num_classes", "img_size", "random_weights", "overrides")
    mean_and_std = f"{hints.option('mean')} and {hints.option('std')}"
    if (hints.mean is None) != (hints.std is None):
        raise UserError(f"{mean_and_std} go together")
    model = make()
    if hints.mean is not None and hints.std is not None:
        model = normalized(model, hints.mean, hints.std)
    else:
        say(f"{text}: gets pixels in [0, 1] as they are; {mean_and_std} would put a normalization in front of it")
    return ModelRef(text, fingerprint(model)[:8], title, {"path": None, "name": text}, built=model.eval())


def _from_timm(text: str, hints: ModelHints) -> ModelRef | None:
    from robustvit.models.registered import timm

    hints.refuse_of_file()
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


RESOLVERS: list[Callable[[str, ModelHints], ModelRef | None]] = [
    _from_hub, _from_run, _from_zoo, _from_onnx, _from_checkpoint, _from_function, _from_timm,
]  # fmt: skip
"""Tried in order, each None for a text of another kind; a further kind of source goes before the last."""

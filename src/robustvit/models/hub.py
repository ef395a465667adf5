"""Folders of the Hugging Face hub, on it or on disk: models of this package, of timm and of transformers."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from torch import nn

from robustvit.core.config import Tree, read_yaml
from robustvit.core.errors import UserError, first_line
from robustvit.core.files import is_file, is_folder
from robustvit.core.progress import say
from robustvit.core.readers import read_json
from robustvit.models.create import cached_files_if_offline
from robustvit.models.foreign import shortened
from robustvit.models.hints import ModelHints
from robustvit.models.normalize import Normalization, normalized

CONFIG, WEIGHTS, RECIPE = "config.json", "model.safetensors", "recipe.yaml"
OWN = "robustvit"
"""The entry in `config.json` of a model that `robustvit push` or `export` wrote."""
_ON_HUB, _ON_DISK = re.compile(r"hf[_-]hub:(.+)"), re.compile(r"(?:local-dir:)?(.+)")


def hub_folder(text: str) -> Path | None:
    """The local copy of such a folder, without its weights; None where this names something else, or can't be had."""
    if on_hub := _ON_HUB.fullmatch(text):
        path = _downloaded(on_hub[1], CONFIG)
        return None if path is None else path.parent
    match = _ON_DISK.fullmatch(text)
    folder = Path(match[1]) if match else None
    return folder if folder and is_folder(folder) and is_file(folder / CONFIG) else None


def read_config(folder: Path) -> dict[str, Any]:
    return read_json(folder / CONFIG, TypeAdapter(dict[str, Any]), "configuration of a model")


def own_weights(text: str, folder: Path) -> Path:
    path = _file(text, folder, WEIGHTS)
    if path is None:
        raise UserError(f"{text}: its {WEIGHTS} can't be had; with a network it is downloaded once")
    return path


def own_recipe(text: str, folder: Path) -> Tree | None:
    """Of the run that was pushed; its data and threat are the defaults of an evaluation."""
    path = _file(text, folder, RECIPE)
    return None if path is None else read_yaml(path)


def _file(text: str, folder: Path, name: str) -> Path | None:
    on_hub = _ON_HUB.fullmatch(text)
    path = _downloaded(on_hub[1], name) if on_hub else folder / name
    return path if path and is_file(path) else None


def _downloaded(name: str, file: str) -> Path | None:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HFValidationError

    try:
        with cached_files_if_offline():
            return Path(hf_hub_download(name, file))
    except (OSError, HFValidationError):
        return None


def transformers_model(text: str, hints: ModelHints) -> nn.Module:
    """An image classifier of transformers on pixels in [0, 1]: the normalization of its image processor is inside."""
    source = re.sub(r"^(hf[_-]hub:|local-dir:)", "", text)
    why = f"{text} knows its own"
    hints.refuse(why, "model", "num_classes", "img_size", "random_weights", "overrides")
    hints.refuse_of_file()
    try:
        import transformers
    except ImportError:
        raise UserError(f"{text}: a model of transformers, which isn't installed: pip install transformers") from None
    with _explaining(text), _quiet(transformers.utils.logging), cached_files_if_offline():
        load = transformers.AutoModelForImageClassification.from_pretrained
        model, found = load(source, use_safetensors=True, output_loading_info=True)
    missing = sorted([*found["missing_keys"], *(str(key) for key in found["mismatched_keys"])])
    if missing:
        raise UserError(f"{text}: has no weights for {shortened(missing)}, which would be random; is it a classifier?")
    if found["unexpected_keys"]:
        say(f"{text}: leaves out {shortened(sorted(found['unexpected_keys']))}, which a classifier has no place for")
    return normalized(model.eval(), *_normalization(transformers, source, text, hints)).eval()


def _normalization(transformers: Any, source: str, text: str, hints: ModelHints) -> Normalization:
    """The processor's, as mean and std of pixels in [0, 1], whatever range it normalizes."""
    given = Normalization(hints.mean, hints.std) if hints.mean and hints.std else None
    try:
        with cached_files_if_offline():
            processor = transformers.AutoImageProcessor.from_pretrained(source)
    except (OSError, ValueError, ImportError, KeyError) as error:
        if given is None:
            asked = f"give {hints.option('mean')} and {hints.option('std')}"
            raise UserError(f"{text}: has no image processor that can be read ({first_line(error)}); {asked}") from None
        return given
    stored = processor_normalization(processor)
    if given is not None and not stored.agrees(given):
        raise UserError(f"{text}: its image processor has the mean and std {stored}, not {given}")
    return stored


def processor_normalization(processor: Any) -> Normalization:
    """A processor multiplies pixels in 0 to 255 by a factor, may move them by 1, and normalizes what results."""
    if getattr(processor, "include_top", None):
        raise UserError("its image processor normalizes twice (include_top), which isn't one mean and std")
    scale = 255 * float(processor.rescale_factor) if getattr(processor, "do_rescale", False) else 255.0
    offset = 1.0 if getattr(processor, "rescale_offset", False) else 0.0
    does = bool(getattr(processor, "do_normalize", False))
    mean = tuple(map(float, processor.image_mean)) if does else (0.0,)
    std = tuple(map(float, processor.image_std)) if does else (1.0,)
    return Normalization(tuple((value + offset) / scale for value in mean), tuple(value / scale for value in std))


@contextmanager
def _quiet(logging: Any) -> Iterator[None]:
    """Without the library's progress bars and tables: what matters of them is said here."""
    verbosity, has_bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if has_bar:
            logging.enable_progress_bar()


@contextmanager
def _explaining(text: str) -> Iterator[None]:
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # the library raises whatever its files make it run into
        raise UserError(f"{text}: transformers can't load it as an image classifier ({first_line(error)})") from error


def is_transformers(config: dict[str, Any]) -> bool:
    return "model_type" in config


def is_own(config: dict[str, Any]) -> bool:
    return OWN in config

"""Weights on disk: safetensors under timm's own keys, how to build the model in the metadata; never a live pickle."""

import argparse
import hashlib
import json
import pickle
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from pydantic import TypeAdapter
from torch import Tensor, nn
from torch.serialization import safe_globals

from robustvit.core.component import to_dict
from robustvit.core.config import validated
from robustvit.core.errors import UserError, first_line, shortened
from robustvit.core.files import is_file, write_atomic
from robustvit.core.readers import conforming, parse_json, read_safetensors_metadata
from robustvit.core.world import refuse_meta
from robustvit.models.create import ModelSettings, describe
from robustvit.models.foreign import find_state, fit_state, misfits
from robustvit.models.heads import whole
from robustvit.models.normalize import Normalization, Normalized, backbone_of

_METADATA_KEY = "robustvit"
JAX = ".npz"
"""Weights of big_vision and others, which tell the model, but not its normalization."""
_SCALAR = np.float64(0).__reduce__()[0]
_HARMLESS: list[Any] = [
    argparse.Namespace,
    np.dtype,
    *(type(np.dtype(kind)) for kind in ("f8", "f4", "i8", "i4", "?")),
    (_SCALAR, "numpy.core.multiarray.scalar"),
    (_SCALAR, "numpy._core.multiarray.scalar"),
]
"""What training scripts store next to the weights and what is harmless: their options, a best accuracy."""


class Handler(NamedTuple):
    """Of extra state: behavior of a model that its state dict doesn't hold, saved under a key of its own."""

    get: Callable[[nn.Module], Any]
    """As JSON; None where the model is as it was built."""
    set: Callable[[nn.Module, Any], None]
    fold: Callable[[nn.Module], object]
    """Moves the behavior into the weights, in place: the same logits from the state dict alone."""


HANDLERS: dict[str, Handler] = {}


def extra_state(model: nn.Module) -> dict[str, Any]:
    """Of a model seen through one of its heads, the whole model's."""
    model = whole(model)
    return {key: value for key, handler in HANDLERS.items() if (value := handler.get(model)) is not None}


def load_extra_state(model: nn.Module, state: Mapping[str, Any], source: str = "extra state") -> None:
    """Restores what `extra_state` gave; other keys are left alone."""
    for key, handler in HANDLERS.items():
        try:
            if state.get(key) is not None:
                handler.set(model, state[key])
        except UserError as error:
            raise UserError(f"{source}: {error}") from None


def save_model(model: nn.Module, path: Path, **facts: Any) -> None:
    """Save the weights; the metadata holds the settings of the model and `facts` such as recipe, rule and epoch."""
    settings = model.settings if isinstance(model, Normalized) else None
    metadata = {"model": to_dict(settings), **extra_state(model), **facts}
    write_safetensors(backbone_of(model), path, metadata)


def write_safetensors(module: nn.Module, path: Path, metadata: dict[str, Any], **more: str) -> None:
    from safetensors.torch import save

    state = {key: value.detach().cpu().contiguous() for key, value in module.state_dict().items()}
    data = _in_order(save(state, metadata={_METADATA_KEY: json.dumps(metadata), **more}))
    write_atomic(path, lambda file: file.write(data))


def _in_order(data: bytes) -> bytes:
    """The same bytes each time: safetensors writes several keys of metadata in any order."""
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    if len(header["__metadata__"]) == 1:
        return data
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at multiples of 8
    return len(text).to_bytes(8, "little") + text + data[end:]


def load_checkpoint(
    path: str | Path,
    settings: ModelSettings | None = None,
    *,
    weights_key: str | None = None,
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
) -> Normalized:
    """Load the model of a checkpoint.

    For files that robustvit didn't write, `settings` say how to build the model, including mean and std; `weights_key`
    names the entry that holds the weights if there are several. A file that knows its model, but no normalization,
    needs `mean` and `std` alone.
    """
    path = Path(path)
    state, facts = load_state(path, weights_key)
    stored = stored_settings(facts, path)
    if settings is None and stored is not None:
        settings = stored if stored.normalization else replace(stored, mean=mean, std=std)
    if settings is None:
        task = facts.get("recipe", {}).get("task", {}).get("name", "classify")
        if task != "classify":
            raise UserError(f"{path}: holds what the task '{task}' trained, not a classifier")
        raise UserError(
            f"{path}: holds weights but not which model they belong to; "
            "name it: --model NAME (and --num-classes --img-size --mean --std)"
        )
    model = settings.build()
    backbone = model.backbone
    fitted, stored_normalization = fit_state(state, backbone)
    problems = misfits(fitted, backbone)
    if problems:
        raise UserError(f"{path}: its weights don't fit model '{settings.name}': {problems}")
    backbone.load_state_dict(fitted)
    if settings is not stored:
        known = stored.normalization if stored else None
        mean, std = _normalization(settings, known or stored_normalization, model, path)
        model, made = Normalized(backbone, mean, std), model.settings
        model.settings = replace(made, mean=mean, std=std)
    load_extra_state(model, facts, f"{path} (metadata)")
    return model.eval()


def _normalization(given: ModelSettings, stored: Normalization | None, model: Normalized, path: Path) -> Normalization:
    """The user's or the file's, which must not disagree; without either there is no guess."""
    if (given.mean is None) != (given.std is None):
        raise UserError("mean and std go together: give both or neither")
    wanted = given.normalization or stored
    if wanted is None:
        raise unknown_normalization(f"{path}:", "give --mean and --std: 0 and 1", model)
    if stored is not None and not stored.agrees(wanted):
        raise UserError(f"{path}: was stored with the mean and std {stored}, not {wanted}")
    return wanted


def unknown_normalization(source: str, advice: str, model: Normalized) -> UserError:
    return UserError(
        f"{source} doesn't say how its images were normalized; {advice} for a model of pixels in [0, 1], "
        f"{model.normalization} if it was trained with timm's own for '{describe(model)['name']}'"
    )


def load_state(
    path: Path, weights_key: str | None = None, option: str = "--weights-key"
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of a checkpoint and the facts in its metadata; `option` is what the user calls `weights_key`."""
    if not is_file(path):
        raise UserError(f"{path}: no such checkpoint")
    if path.suffix == ".safetensors":
        if weights_key is not None:
            raise UserError(f"{option} {weights_key}: {path} holds one set of weights")
        return _load_safetensors(path)
    if path.suffix == JAX:
        from robustvit.models.jax_weights import read_jax

        tensors, settings = read_jax(path, weights_key)
        return tensors, {"model": to_dict(settings)}
    state = find_state(_load_torch(path), weights_key, path, option)
    hollow = next((name for name, tensor in state.items() if tensor.is_meta), None)
    if hollow is not None:
        raise UserError(f"{path}: '{hollow}' is a tensor of the meta device, which holds no numbers; save real weights")
    return state, {}


def stored_settings(facts: dict[str, Any], path: Path) -> ModelSettings | None:
    """How to build the model, where the checkpoint's metadata says it."""
    return validated(ModelSettings, facts["model"], f"{path} (metadata)") if facts.get("model") else None


def load_facts(path: Path) -> dict[str, Any]:
    """The metadata of a checkpoint, without its tensors."""
    return _load_safetensors(path, tensors=False)[1] if path.suffix == ".safetensors" else {}


def fingerprint(model: nn.Module) -> str:
    """sha256 over parameters, all buffers, and the layers as they print themselves."""
    refuse_meta(model)
    digest = hashlib.sha256(f"{type(model)}\n{model!r}{extra_state(model) or ''}".encode())
    for name, tensor in sorted([*model.named_parameters(), *model.named_buffers()], key=lambda item: item[0]):
        values = tensor.detach().cpu().contiguous()
        digest.update(f"{name} {values.dtype} {tuple(values.shape)}".encode())
        digest.update(values.flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _load_safetensors(path: Path, tensors: bool = True) -> tuple[dict[str, Tensor], dict[str, Any]]:
    from safetensors import safe_open

    text = read_safetensors_metadata(path).get(_METADATA_KEY, "{}")
    facts = parse_json(text.encode("utf-8", "surrogatepass"), f"{path} (metadata)")
    state = {}
    try:
        if tensors:
            with safe_open(path, framework="pt") as file:
                state = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - no mapping
    except Exception as error:  # the library raises whatever a damaged header makes it run into
        raise UserError(f"{path}: not a whole safetensors file ({shortened(first_line(error))})") from None
    return state, conforming(facts, TypeAdapter(dict[str, Any]), f"{path} (metadata)", "description of a model")


def _is_scripted(path: Path) -> bool:
    """torch.jit's archives hold code next to the tensors."""
    try:
        with zipfile.ZipFile(path) as archive:
            return any("/code/" in name for name in archive.namelist())
    except (zipfile.BadZipFile, OSError):
        return False


def _load_torch(path: Path) -> Any:
    if _is_scripted(path):
        raise UserError(
            f"{path}: a scripted model, whose weights and attention can't be reached; save the state dict instead: "
            "torch.save(model.state_dict(), path)"
        )
    try:
        with safe_globals(_HARMLESS):
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        with path.open("rb") as file:
            if file.read(2) not in (b"PK", *(bytes([0x80, protocol]) for protocol in range(2, 6))):
                raise UserError(f"{path}: neither a torch nor a safetensors checkpoint, but something else") from None
        raise UserError(
            f"{path}: holds Python objects that could run code when loaded, so it isn't; "
            "save the state dict instead: torch.save(model.state_dict(), path)"
        ) from None
    except (RuntimeError, EOFError, OSError, ValueError, LookupError) as error:
        raise UserError(f"{path}: not a whole torch checkpoint ({first_line(error)})") from None

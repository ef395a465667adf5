"""Weights on disk: safetensors under timm's own keys, how to build the model in the metadata; never a live pickle."""

import argparse
import hashlib
import json
import pickle
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.serialization import safe_globals

from robustvit.core.component import to_dict
from robustvit.core.config import validated
from robustvit.core.errors import UserError, first_line
from robustvit.core.files import is_file, write_atomic
from robustvit.models.attention_factors import extra_state, load_extra_state
from robustvit.models.create import ModelSettings, model_settings
from robustvit.models.foreign import Normalization, find_state, fit_state, misfits, normalization
from robustvit.models.normalize import Normalized, backbone_of

_METADATA_KEY = "robustvit"
_SCALAR = np.float64(0).__reduce__()[0]
_HARMLESS: list[Any] = [
    argparse.Namespace,
    np.dtype,
    *(type(np.dtype(kind)) for kind in ("f8", "f4", "i8", "i4", "?")),
    (_SCALAR, "numpy.core.multiarray.scalar"),
    (_SCALAR, "numpy._core.multiarray.scalar"),
]
"""What training scripts store next to the weights and what is harmless: their options, a best accuracy."""


def save_model(model: nn.Module, path: Path, **facts: Any) -> None:
    """Weights and, in the metadata, the settings that build the model again; `facts` (recipe, rule, epoch) go along."""
    from safetensors.torch import save

    state = {key: value.detach().cpu().contiguous() for key, value in backbone_of(model).state_dict().items()}
    settings = model_settings(model)
    metadata = json.dumps({"model": to_dict(settings) if settings else None, **extra_state(model), **facts})
    data = save(state, metadata={_METADATA_KEY: metadata})  # one key: their order isn't fixed
    write_atomic(path, lambda file: file.write(data))


def load_model(path: str | Path, settings: ModelSettings | None = None, *, weights_key: str | None = None) -> nn.Module:
    """The model in a checkpoint.

    A file of somebody else's doesn't say how to build its model: `settings` do, mean and std among them; `weights_key`
    names the entry that holds the weights where several do.
    """
    return load_checkpoint(Path(path), settings, weights_key)[0]


def load_checkpoint(
    path: Path, settings: ModelSettings | None = None, weights_key: str | None = None
) -> tuple[nn.Module, dict[str, Any]]:
    """The model, and the facts that were stored with it."""
    state, facts = load_state(path, weights_key)
    stored = validated(ModelSettings, facts["model"], f"{path} (metadata)") if facts.get("model") else None
    settings = settings or stored
    if settings is None:
        raise UserError(
            f"{path}: holds weights but not which model they belong to; "
            "name it: --model NAME (and --num-classes --img-size --mean --std)"
        )
    model = settings.build()
    backbone = model.backbone
    fitted = fit_state(state, backbone)
    problems = misfits(fitted.state, backbone)
    if problems:
        raise UserError(f"{path}: its weights don't fit model '{settings.name}': {problems}")
    backbone.load_state_dict(fitted.state)
    if settings is not stored:
        known = fitted.normalization
        if stored is not None and stored.mean and stored.std:
            known = Normalization(stored.mean, stored.std)
        mean, std = normalization(settings, known, model, path)
        model, made = Normalized(backbone, mean, std), model.settings
        model.settings = replace(made, mean=mean, std=std)  # type: ignore[type-var]
    load_extra_facts(model, facts, path)
    return model.eval(), facts


def load_state(
    path: Path, weights_key: str | None = None, option: str = "--weights-key"
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of a checkpoint and what its metadata tells; `option` is what the user calls `weights_key`."""
    if not is_file(path):
        raise UserError(f"{path}: no such checkpoint")
    if path.suffix == ".safetensors":
        if weights_key is not None:
            raise UserError(f"{option} {weights_key}: {path} holds one set of weights")
        return _load_safetensors(path)
    return find_state(_load_torch(path), weights_key, path, option), {}


def load_extra_facts(model: nn.Module, facts: Mapping[str, Any], path: Path) -> None:
    try:
        load_extra_state(model, facts)
    except UserError as error:
        raise UserError(f"{path} (metadata): {error}") from None


def load_facts(path: Path) -> dict[str, Any]:
    """What the metadata of a checkpoint tells, without its tensors."""
    return _load_safetensors(path, tensors=False)[1] if path.suffix == ".safetensors" else {}


def fingerprint(model: nn.Module) -> str:
    """sha256 over parameters, all buffers, and the layers as they print themselves."""
    digest = hashlib.sha256(f"{type(model)}\n{model!r}{extra_state(model) or ''}".encode())
    for name, tensor in sorted([*model.named_parameters(), *model.named_buffers()], key=lambda item: item[0]):
        values = tensor.detach().cpu().contiguous()
        digest.update(f"{name} {values.dtype} {tuple(values.shape)}".encode())
        digest.update(values.flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _load_safetensors(path: Path, tensors: bool = True) -> tuple[dict[str, Tensor], dict[str, Any]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            state = {key: file.get_tensor(key) for key in file.keys() if tensors}  # noqa: SIM118 - no mapping
        facts = json.loads(metadata.get(_METADATA_KEY, "{}"))
        return state, facts if isinstance(facts, dict) else {}
    except (SafetensorError, OSError, json.JSONDecodeError) as error:
        raise UserError(f"{path}: not a whole safetensors file ({error})") from None


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

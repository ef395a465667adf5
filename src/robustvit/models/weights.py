"""Weights on disk: safetensors under timm's own keys, how to build the model in the metadata; never a live pickle."""

import hashlib
import json
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from robustvit.core.component import to_dict
from robustvit.core.config import validated
from robustvit.core.errors import UserError, first_line
from robustvit.core.files import is_file, write_atomic
from robustvit.models.create import ModelSettings, model_settings
from robustvit.models.normalize import Normalized

_METADATA_KEY = "robustvit"
_WRAPPING_KEYS = ("state_dict", "model", "model_state_dict", "net", "weights")
_PREFIXES = ("module.", "_orig_mod.", "backbone.")


def save_model(model: nn.Module, path: Path, **facts: Any) -> None:
    """Weights and, in the metadata, the settings that build the model again; `facts` (recipe, rule, epoch) go along."""
    from safetensors.torch import save

    backbone = model.backbone if isinstance(model, Normalized) else model
    assert isinstance(backbone, nn.Module)
    state = {key: value.detach().cpu().contiguous() for key, value in backbone.state_dict().items()}
    found = model_settings(model)
    metadata = json.dumps({"model": to_dict(found) if found else None, **facts})
    data = save(state, metadata={_METADATA_KEY: metadata})  # one key: their order isn't fixed
    write_atomic(path, lambda file: file.write(data))


def load_model(path: str | Path, settings: ModelSettings | None = None) -> nn.Module:
    """The model in a checkpoint; `settings` where the file doesn't say how to build it."""
    return load_checkpoint(Path(path), settings)[0]


def load_checkpoint(path: Path, settings: ModelSettings | None = None) -> tuple[nn.Module, dict[str, Any]]:
    """The model, and the facts that were stored with it."""
    state, facts = load_state(path)
    stored = facts.get("model")
    if settings is None:
        if not stored:
            raise UserError(
                f"{path}: holds weights but not which model they belong to; "
                "name it: --model NAME (and --num-classes --img-size --mean --std)"
            )
        settings = validated(ModelSettings, stored, f"{path} (metadata)")
    model = settings.build()
    try:
        model.backbone.load_state_dict(state)
    except RuntimeError as error:
        lines = [line.strip() for line in str(error).splitlines()[1:3]]
        raise UserError(f"{path}: its weights don't fit model '{settings.name}': {' '.join(lines)}") from None
    return model.eval(), facts


def load_state(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of a checkpoint and what its metadata tells."""
    if not is_file(path):
        raise UserError(f"{path}: no such checkpoint")
    if path.suffix == ".safetensors":
        return _load_safetensors(path)
    if path.suffix in (".pt", ".pth"):
        return _load_torch(path), {}
    raise UserError(f"{path}: a checkpoint ends in .safetensors, .pt or .pth")


def fingerprint(model: nn.Module) -> str:
    """sha256 over parameters, all buffers, and the layers as they print themselves."""
    found = hashlib.sha256(f"{type(model)}\n{model!r}".encode())
    for name, tensor in sorted([*model.named_parameters(), *model.named_buffers()], key=lambda item: item[0]):
        values = tensor.detach().cpu().contiguous()
        found.update(f"{name} {values.dtype} {tuple(values.shape)}".encode())
        found.update(values.flatten().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _load_safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            state = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - no mapping
        facts = json.loads(metadata.get(_METADATA_KEY, "{}"))
        return state, facts if isinstance(facts, dict) else {}
    except (SafetensorError, OSError, json.JSONDecodeError) as error:
        raise UserError(f"{path}: not a whole safetensors file ({error})") from None


def _load_torch(path: Path) -> dict[str, Tensor]:
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise UserError(
            f"{path}: holds Python objects that could run code when loaded, so it isn't; "
            "save the state dict instead: torch.save(model.state_dict(), path)"
        ) from None
    except (RuntimeError, EOFError, OSError, ValueError, LookupError) as error:
        raise UserError(f"{path}: not a whole torch checkpoint ({first_line(error)})") from None
    for key in _WRAPPING_KEYS:
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
            break
    if not isinstance(content, Mapping) or not all(isinstance(value, Tensor) for value in content.values()):
        raise UserError(f"{path}: no state dict found, neither at the top nor under {', '.join(_WRAPPING_KEYS)}")
    return {_bare(str(key)): value for key, value in content.items()}


def _bare(key: str) -> str:
    for prefix in _PREFIXES:
        key = key.removeprefix(prefix)
    return key

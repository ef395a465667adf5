"""Checkpoints that NVlabs publish with EDM (.pkl), read without running the code that they carry.

Such a file is a pickle of modules, each with the source of its class. Unpickling it runs that source. Here, the few
names that it needs lead to stand-ins that only keep what they are given; any other name is refused.
"""

import io
import pickle
import warnings
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from robustvit.core.config import validated
from robustvit.core.errors import UserError, first_line, shortened
from robustvit.core.progress import say
from robustvit.core.readers import regular_size
from robustvit.synthesis.denoiser import Denoiser, DenoiserSettings, filled

LICENSE = "CC BY-NC-SA 4.0"
_ONLY = {"embedding_type": "positional", "encoder_type": "standard", "decoder_type": "standard",
         "channel_mult_emb": 4, "channel_mult_noise": 1, "resample_filter": [1, 1]}  # fmt: skip
"""What makes their U-Net a DDPM++; also their defaults."""


class _Kept:
    """An object of a pickle: the name of its class, where known, and its state."""

    def __init__(self, name: str = "", state: Any = None) -> None:
        self.name, self.state = name, state

    def __setstate__(self, state: Any) -> None:
        self.name, self.state = "", state


class _Storage(NamedTuple):
    data: torch.UntypedStorage
    dtype: torch.dtype


def _keep(meta: Any) -> _Kept:
    return _Kept(str(meta["class_name"]), meta["state"])


def _storage(data: Any) -> Any:
    if not isinstance(data, bytes):
        raise pickle.UnpicklingError("a tensor without its bytes")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch deprecates typed storages, in which these files are
        typed = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        return _Storage(typed.untyped(), typed.dtype)


def _tensor(storage: Any, offset: Any, size: Any, stride: Any, *rest: Any) -> Tensor:
    numbers = [offset, *size, *stride]
    if not all(type(number) is int and number >= 0 for number in numbers) or len(size) != len(stride):
        raise pickle.UnpicklingError("a tensor of no shape")
    numel = int(np.prod(size, dtype=np.float64))
    last = offset + sum((side - 1) * step for side, step in zip(size, stride, strict=True))
    held = storage.data.nbytes() // storage.dtype.itemsize
    if numel > held or (numel and last >= held):
        raise pickle.UnpicklingError("a tensor that is larger than its storage")
    empty = torch.empty(0, dtype=storage.dtype)
    return empty.set_(storage.data, offset, tuple(size), tuple(stride)).clone()


def _parameter(data: Any, *rest: Any) -> Any:
    return data


_SCALAR = np.float64(0).__reduce__()[0]
_ALLOWED: dict[tuple[str, str], Any] = {
    ("torch_utils.persistence", "_reconstruct_persistent_obj"): _keep,
    ("torch.nn.modules.container", "ModuleDict"): _Kept,
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch._utils", "_rebuild_parameter"): _parameter,
    ("torch.storage", "_load_from_bytes"): _storage,
    ("collections", "OrderedDict"): OrderedDict,
    ("dnnlib.util", "EasyDict"): dict,
    ("builtins", "set"): set,
    ("numpy", "dtype"): np.dtype,
    ("numpy.core.multiarray", "scalar"): _SCALAR,
    ("numpy._core.multiarray", "scalar"): _SCALAR,
}


class _Restricted(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {shortened(f'{module}.{name}', 80)}, which no network needs")
        return _ALLOWED[module, name]


def load_published(path: Path, quiet: bool = False) -> Denoiser:
    """The denoiser of a checkpoint, in eval mode; its license is named."""
    regular_size(path)
    try:
        with path.open("rb") as file:
            content = _Restricted(file).load()
    except Exception as error:  # a pickle raises whatever its opcodes run into
        raise UserError(f"{path}: not a checkpoint of EDM ({shortened(first_line(error))})") from None
    try:
        made, state = _network(content, path)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{path}: not a whole checkpoint of EDM (it lacks {shortened(str(error))})") from None
    if not quiet:
        say(f"{path}: published by NVlabs under {LICENSE}, not for commercial use")
    return filled(made, state, path)


def _network(content: Any, path: Path) -> tuple[DenoiserSettings, dict[str, Tensor]]:
    outer: _Kept = content["ema"]
    if outer.name != "EDMPrecond":
        raise UserError(f"{path}: holds the class '{shortened(outer.name, 80)}'; only EDM's own (EDMPrecond) is known")
    inner: _Kept = outer.state["_modules"]["model"]
    if inner.name != "SongUNet":
        raise UserError(f"{path}: holds the network '{shortened(inner.name, 80)}'; only DDPM++ (SongUNet) is known")
    given: Mapping[str, Any] = inner.state["_init_kwargs"]
    for name, only in _ONLY.items():
        if given.get(name, only) != only:
            raise UserError(f"{path}: {name} is {given[name]!r}, where DDPM++ has {only!r}; take a checkpoint -vp")
    if not outer.state["label_dim"]:
        raise UserError(f"{path}: has no classes, which generated images need; take a checkpoint -cond")
    if outer.state["img_channels"] != 3:
        raise UserError(f"{path}: makes images of {outer.state['img_channels']} channels; three are needed")
    network = {"name": "ddpmpp", "channels": given["model_channels"], "multipliers": list(given["channel_mult"]),
               "blocks": given.get("num_blocks", 4), "attention": list(given.get("attn_resolutions", [16])),
               "dropout": given.get("dropout", 0.1)}  # fmt: skip
    settings = {"img_size": outer.state["img_resolution"], "num_classes": outer.state["label_dim"],
                "network": network, "augment_labels": given.get("augment_dim", 0),
                "sigma_data": outer.state["sigma_data"]}  # fmt: skip
    tensors = dict(_tensors(outer, ""))
    filters = {name for name in tensors if name.endswith(".resample_filter")}
    if any(not torch.equal(tensors[name], torch.full((1, 1, 2, 2), 0.25)) for name in filters):
        raise UserError(f"{path}: resamples by another filter than DDPM++'s")
    made: DenoiserSettings = validated(DenoiserSettings, settings, str(path))
    return made, {name: tensor.float() for name, tensor in tensors.items() if name not in filters}


def _tensors(kept: Any, prefix: str) -> Iterator[tuple[str, Tensor]]:
    for kind in ("_parameters", "_buffers"):
        for name, tensor in kept.state[kind].items():
            if tensor is not None:
                if not isinstance(tensor, Tensor):
                    raise TypeError(f"the tensor '{prefix}{name}'")
                yield f"{prefix}{name}", tensor
    for name, module in kept.state["_modules"].items():
        if module is not None:
            yield from _tensors(module, f"{prefix}{name}.")

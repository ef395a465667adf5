"""timm's classifiers by name, with the normalization inside and no setting silently ignored."""

import inspect
import socket
import warnings
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import field
from typing import Any
from urllib.parse import urlsplit

import torch
from pydantic import model_validator
from torch import nn

from robustvit.core.component import build, explaining, settings, to_dict
from robustvit.core.errors import UserError, first_line, nearest
from robustvit.core.numbers import Count
from robustvit.models.adapters.base import AnyAdapters
from robustvit.models.heads import Head
from robustvit.models.modes import temporarily
from robustvit.models.normalize import Normalization, Normalized, check_channels
from robustvit.models.small_images import ADAPTED

_OF_TIMM = frozenset({"drop_rate", "drop_path_rate", "global_pool"})
"""Settings that timm's builders handle before a model's own constructor sees them."""


@settings
class ModelSettings:
    """All that it takes to build a model again: stored with its weights."""

    name: str
    """In timm, or of a model of this project."""
    num_classes: Count | None = None
    """Null: the model's own."""
    img_size: Count | None = None
    """Of its images in pixels; null: the model's own."""
    patch_size: Count | None = None
    """Of a transformer; null: the model's own."""
    mean: tuple[float, ...] | None = None
    """None: timm's own for this model; (0,) with std (1,) leaves the pixels as they are."""
    std: tuple[float, ...] | None = None
    """As for `mean`."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Further settings of the timm model, such as depth or drop_path_rate."""
    adapters: AnyAdapters | None = None
    """What is added to a vision transformer with a class token; its own weights are then called `vit.*`."""

    @model_validator(mode="after")
    def _check(self) -> "ModelSettings":
        twice = sorted(set(self.settings) & {*ModelSettings.__dataclass_fields__, "pretrained"})
        if twice:
            raise ValueError(f"settings.{twice[0]}: belongs next to 'settings', not inside it")
        for name, values in (("mean", self.mean), ("std", self.std)):
            if values is not None:
                check_channels(name, values)
        return self

    @property
    def normalization(self) -> Normalization | None:
        return Normalization(self.mean, self.std) if self.mean and self.std else None

    def build(self, pretrained: bool = False) -> Normalized:
        fixed = {name: value for name, value in vars(self).items() if name != "settings"}
        return create_model(**fixed, **self.settings, pretrained=pretrained)


def create_model(
    name: str,
    *,
    num_classes: int | None = None,
    img_size: int | None = None,
    patch_size: int | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    adapters: Any = None,
    pretrained: bool = False,
    **extra: Any,
) -> Normalized:
    """A timm classifier on pixels in [0, 1]; `mean` and `std` default to timm's own for the model.

    `name` may be one of the Hugging Face hub's timm models: hf_hub:OWNER/NAME. `adapters` are a component, a name or
    settings, such as `{"name": "tora"}`.
    """
    from robustvit.models.registered import timm

    if not is_on_hub(name) and not timm.is_model(name):
        raise UserError(f"no model '{name}' in timm{nearest(name, timm.list_models())}")
    if pretrained and not is_on_hub(name) and not timm.models.is_model_pretrained(name):
        raise UserError(f"model '{name}': nobody has published pretrained weights of this name")
    if img_size and patch_size and img_size % patch_size:
        raise UserError(f"model '{name}': patches of {patch_size} pixels don't divide an image of {img_size}")
    wanted = {"num_classes": num_classes, "img_size": img_size, "patch_size": patch_size, **extra}
    wanted = {key: value for key, value in wanted.items() if value is not None}
    backbone = _build(timm, name, wanted, pretrained)
    config = getattr(backbone, "pretrained_cfg", None) or {}
    default_size = int(config["input_size"][-1]) if config.get("input_size") else None
    is_resized = patch_size or img_size not in (None, default_size)
    img_size = img_size or default_size
    if is_resized:  # at its own size a model is as its authors want it
        _refuse_uneven(name, backbone, img_size)
    is_default = mean is None or std is None
    mean = tuple(mean if mean is not None else config.get("mean", (0.0,)))
    std = tuple(std if std is not None else config.get("std", (1.0,)))
    if adapters is not None:
        with explaining("model.adapters"):
            adapters = build("adapters", adapters)
        backbone = adapters.adapt(backbone)
    model = Normalized(backbone, mean, std)
    model.has_default_normalization = is_default
    num_classes = getattr(backbone, "num_classes", num_classes)
    model.settings = ModelSettings(name, num_classes, img_size, patch_size, mean, std, extra, adapters)
    return model


def describe(model: object) -> dict[str, Any]:
    """The settings for a result file; a foreign model gives its class."""
    if isinstance(model, Head):
        return {**describe(model.model), "head": model.head}
    if isinstance(model, Normalized) and model.settings is not None:
        return dict(to_dict(model.settings))
    return {"name": f"{type(model).__module__}.{type(model).__qualname__}"}


def is_on_hub(name: str) -> bool:
    """timm's way to name a model outside itself: of the Hugging Face hub, or of a folder that was saved for it."""
    return name.startswith(("hf_hub:", "hf-hub:", "local-dir:"))


def _build(timm: Any, name: str, wanted: dict[str, Any], pretrained: bool) -> Any:
    from_network = pretrained or is_on_hub(name)
    try:
        with warnings.catch_warnings(), cached_files_if_offline() if from_network else nullcontext():
            warnings.simplefilter("ignore", UserWarning)
            adapted_patch_size = _check_settings(timm, name, wanted)
            backbone = timm.create_model(name, pretrained=pretrained, **wanted)
            if adapted_patch_size is not None:
                ADAPTED[type(backbone).__name__](backbone, adapted_patch_size)
            return backbone
    except UserError:
        raise
    except Exception as error:  # timm raises whatever its layers do
        if not (from_network and isinstance(error, OSError | RuntimeError)):
            raise UserError(f"model '{name}' can't be built with {wanted}: {first_line(error)}") from error
        raise UserError(
            f"the {'pretrained weights' if pretrained else 'settings'} of '{name}' can't be had ({first_line(error)}); "
            "with a network they are downloaded once"
        ) from error


def cached_files_if_offline() -> AbstractContextManager[None]:
    """Without a network the hub's client retries for most of a minute; ask once, then use only its cache."""
    from huggingface_hub import constants

    address = urlsplit(constants.ENDPOINT)
    try:
        socket.create_connection((address.hostname or "", address.port or 443), timeout=5).close()
    except OSError:
        return temporarily([constants], "HF_HUB_OFFLINE", True)
    return nullcontext()


def _refuse_uneven(name: str, backbone: Any, img_size: int | None) -> None:
    """Patches that don't fill an image leave its edge unseen; windows of nothing (timm < 1.0.31) fail when called."""
    if img_size is None or "img_size" not in constructor_parameters(type(backbone)):
        return
    patch_size = getattr(getattr(backbone, "stem", None), "stride", 1)  # LeViT's
    embed = getattr(backbone, "patch_embed", None)
    cut = getattr(embed, "proj", None)
    if isinstance(cut, nn.Conv2d) and cut.padding == (0, 0) and not getattr(embed, "dynamic_img_pad", False):
        patch_size = cut.stride[0]
    if isinstance(patch_size, int) and img_size % patch_size:
        raise UserError(f"model '{name}': patches of {patch_size} pixels don't divide an image of {img_size}")
    if any(getattr(module, "window_size", None) == (0, 0) for module in backbone.modules()):
        raise UserError(
            f"model '{name}': an image of {img_size} pixels is too small for its stages, each of which halves it; "
            "take a smaller patch_size"
        )


def _check_settings(timm: Any, name: str, wanted: dict[str, Any]) -> int | None:
    """Leaves in `wanted` only settings of the model's own; returns a patch size to set after building.

    A file that somebody sent may ask for anything: timm's functions take `checkpoint_path` and others that read files,
    and constructors swallow what they don't know.
    """
    if not wanted:
        return None
    with torch.device("meta"):  # the class is known by building it without memory
        family = type(timm.create_model(name))
    known = constructor_parameters(family)
    adapted_patch_size = _drop_sizes(name, family, known, wanted)
    allowed = (known | _OF_TIMM) - set(inspect.signature(timm.create_model).parameters)
    unknown = [f"'{key}'{nearest(key, sorted(allowed))}" for key in wanted if key not in allowed]
    if unknown:
        raise UserError("; ".join(f"model '{name}' has no setting {key}" for key in unknown))
    return adapted_patch_size


def _drop_sizes(name: str, family: type, known: set[str], wanted: dict[str, Any]) -> int | None:
    """Takes from `wanted` what the constructor doesn't know of sizes; returns a patch size to set after building."""
    if "img_size" not in known:
        wanted.pop("img_size", None)  # a network of convolutions takes any size
    if "patch_size" in wanted and family.__name__ in ADAPTED:
        return int(wanted.pop("patch_size"))
    if "patch_size" in wanted and "patch_size" not in known:
        raise UserError(
            f"model '{name}' has no patch_size: its first layer can't be made finer; "
            "ViT, DeiT, CaiT, XCiT, Swin, ConvNeXt and ResNet can"
        )
    return None


def constructor_parameters(cls: type) -> set[str]:
    """Its own and those of its bases, which a constructor of *args and **kwargs hands on."""
    return {
        parameter
        for base in cls.__mro__
        if "__init__" in vars(base) and base.__module__.startswith(("timm", "robustvit"))
        for parameter in inspect.signature(vars(base)["__init__"]).parameters
    } - {"self", "args", "kwargs"}

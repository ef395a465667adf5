"""timm's classifiers by name, with the normalization inside and no setting silently ignored."""

import inspect
import socket
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from typing import Any
from urllib.parse import urlsplit

from pydantic import model_validator
from torch import nn

from robustvit.core.component import settings, to_dict
from robustvit.core.errors import UserError, first_line, nearest
from robustvit.core.numbers import Count
from robustvit.models.normalize import Normalized

_OF_TIMM = frozenset({"drop_rate", "drop_path_rate", "global_pool"})
"""Settings that timm's builders handle before a model's own constructor sees them."""


@settings
class ModelSettings:
    """All that it takes to build a model again: stored with its weights."""

    name: str
    num_classes: Count | None = None
    img_size: Count | None = None
    patch_size: Count | None = None
    mean: tuple[float, ...] | None = None
    """None: timm's own for this model; (0,) with std (1,) leaves the pixels as they are."""
    std: tuple[float, ...] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Further settings of the timm model, such as depth or drop_path_rate."""

    @model_validator(mode="after")
    def _check(self) -> "ModelSettings":
        twice = sorted(set(self.settings) & {*ModelSettings.__dataclass_fields__, "pretrained"})
        if twice:
            raise ValueError(f"settings.{twice[0]}: belongs next to 'settings', not inside it")
        for name, values in (("mean", self.mean), ("std", self.std)):
            if values is not None and len(values) not in (1, 3):
                raise ValueError(f"{name}: one number or three (red, green, blue), not {len(values)}")
        return self

    def build(self, pretrained: bool = False) -> Normalized:
        return create_model(
            self.name,
            num_classes=self.num_classes,
            img_size=self.img_size,
            patch_size=self.patch_size,
            mean=self.mean,
            std=self.std,
            pretrained=pretrained,
            **self.settings,
        )


def create_model(
    name: str,
    *,
    num_classes: int | None = None,
    img_size: int | None = None,
    patch_size: int | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    pretrained: bool = False,
    **extra: Any,
) -> Normalized:
    """A timm classifier on pixels in [0, 1]; `mean` and `std` default to timm's own for the model.

    `name` may be one of the Hugging Face hub's timm models: hf_hub:OWNER/NAME.
    """
    import timm

    from robustvit.models import registered  # noqa: F401 - the papers' models under timm's names

    if not is_on_hub(name) and not timm.is_model(name):
        raise UserError(f"no model '{name}' in timm{nearest(name, timm.list_models())}")
    if pretrained and not is_on_hub(name) and not timm.models.is_model_pretrained(name):
        raise UserError(f"model '{name}': nobody has published pretrained weights of this name")
    if img_size and patch_size and img_size % patch_size:
        raise UserError(f"model '{name}': patches of {patch_size} pixels don't divide an image of {img_size}")
    wanted = {"num_classes": num_classes, "img_size": img_size, "patch_size": patch_size, **extra}
    wanted = {key: value for key, value in wanted.items() if value is not None}
    backbone = _build(timm, name, wanted, pretrained)
    _refuse_ignored(name, backbone, wanted)
    config = getattr(backbone, "pretrained_cfg", None) or {}
    if patch_size or img_size not in (None, _default_size(config)):  # at its own size a model is as its authors want it
        _refuse_uneven(name, backbone, img_size or _default_size(config))
    is_default = mean is None or std is None
    mean = tuple(mean if mean is not None else config.get("mean", (0.0,)))
    std = tuple(std if std is not None else config.get("std", (1.0,)))
    model = Normalized(backbone, mean, std)
    model.has_default_normalization = is_default  # type: ignore[assignment]
    model.settings = ModelSettings(  # type: ignore[assignment]
        name=name,
        num_classes=getattr(backbone, "num_classes", num_classes),
        img_size=img_size or _default_size(config),
        patch_size=patch_size,
        mean=mean,
        std=std,
        settings=extra,
    )
    return model


def model_settings(model: object) -> ModelSettings | None:
    """How `create_model` made it, or None for a foreign model."""
    made_with = getattr(model, "settings", None)
    return made_with if isinstance(made_with, ModelSettings) else None


def describe(model: object) -> dict[str, Any]:
    """The settings for a result file; a foreign model gives its class."""
    settings = model_settings(model)
    return to_dict(settings) if settings else {"name": f"{type(model).__module__}.{type(model).__qualname__}"}


def is_on_hub(name: str) -> bool:
    """timm's way to name a model outside itself: of the Hugging Face hub, or of a folder that was saved for it."""
    return name.startswith(("hf_hub:", "hf-hub:", "local-dir:"))


def _build(timm: Any, name: str, wanted: dict[str, Any], pretrained: bool) -> Any:
    from_network = pretrained or is_on_hub(name)
    try:
        with warnings.catch_warnings(), _cached_weights_if_offline(from_network):
            warnings.simplefilter("ignore", UserWarning)
            adapt = _adaptation(name, wanted)
            backbone = timm.create_model(name, pretrained=pretrained, **wanted)
            adapt(backbone)
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


@contextmanager
def _cached_weights_if_offline(wanted: bool) -> Iterator[None]:
    """Without a network the hub's client retries for most of a minute; ask once, then use only its cache."""
    if not wanted:
        yield
        return
    from huggingface_hub import constants

    address = urlsplit(constants.ENDPOINT)
    before = constants.HF_HUB_OFFLINE
    try:
        with socket.create_connection((address.hostname or "", address.port or 443), timeout=5):
            pass
    except OSError:
        constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


def _refuse_ignored(name: str, backbone: Any, wanted: dict[str, Any]) -> None:
    """timm's builders pass unknown settings to constructors that swallow them."""
    known = constructor_parameters(type(backbone)) | _OF_TIMM
    unknown = [key for key in wanted if key not in known]
    if unknown:
        raise UserError(
            "; ".join(f"model '{name}' has no setting '{key}'{nearest(key, sorted(known))}" for key in unknown)
        )


def _refuse_uneven(name: str, backbone: Any, img_size: int | None) -> None:
    """Patches that don't fill an image leave its edge unseen; windows of nothing fail when the model is called."""
    if img_size is None or "img_size" not in constructor_parameters(type(backbone)):
        return
    embed = getattr(backbone, "patch_embed", None)
    cut, pads = getattr(embed, "proj", None), getattr(embed, "dynamic_img_pad", False)
    if isinstance(cut, nn.Conv2d) and cut.padding == (0, 0) and not pads:
        patch_size = cut.stride[0]
    else:
        stride = getattr(getattr(backbone, "stem", None), "stride", None)  # LeViT's
        patch_size = stride if isinstance(stride, int) else 1
    if img_size % patch_size:
        raise UserError(f"model '{name}': patches of {patch_size} pixels don't divide an image of {img_size}")
    if any(getattr(module, "window_size", None) == (0, 0) for module in backbone.modules()):
        raise UserError(
            f"model '{name}': an image of {img_size} pixels is too small for its stages, each of which halves it; "
            "take a smaller patch_size"
        )


def _adaptation(name: str, wanted: dict[str, Any]) -> Callable[[Any], None]:
    """What its constructor doesn't take of an image's and a patch's size leaves `wanted`; what is left to do after."""
    from robustvit.models.small_images import ADAPTED

    if not {"img_size", "patch_size"} & set(wanted):
        return lambda backbone: None
    family = _family(name)
    if "img_size" not in constructor_parameters(family):
        wanted.pop("img_size", None)  # a network of convolutions takes any size
    if "patch_size" in wanted and family.__name__ in ADAPTED:
        adapt, patch_size = ADAPTED[family.__name__], wanted.pop("patch_size")
        return lambda backbone: adapt(backbone, patch_size)
    if "patch_size" in wanted and "patch_size" not in constructor_parameters(family):
        raise UserError(
            f"model '{name}' has no patch_size: its first layer can't be made finer; "
            "ViT, DeiT, CaiT, XCiT, Swin, ConvNeXt and ResNet can"
        )
    return lambda backbone: None


def _family(name: str) -> type:
    """A model's class, known by building it without memory."""
    import timm
    import torch

    with torch.device("meta"):
        return type(timm.create_model(name))


def constructor_parameters(cls: type) -> set[str]:
    """Its own and those of its bases, which a constructor of *args and **kwargs hands on."""
    return {
        parameter
        for base in cls.__mro__
        if "__init__" in vars(base) and base.__module__.startswith(("timm", "robustvit"))
        for parameter in inspect.signature(vars(base)["__init__"]).parameters
    } - {"self", "args", "kwargs"}


def _default_size(config: Mapping[str, Any]) -> int | None:
    size = config.get("input_size")
    return int(size[-1]) if size else None

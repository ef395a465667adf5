"""A model as a folder that timm loads by itself: `timm.create_model('local-dir:FOLDER', pretrained=True)`."""

import copy
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch import nn

from robustvit.core.component import to_dict
from robustvit.core.errors import UserError, first_line
from robustvit.core.files import write_json
from robustvit.core.run import versions
from robustvit.models.create import ModelSettings, constructor_parameters, is_on_hub
from robustvit.models.foreign import misfits
from robustvit.models.hub import CONFIG, OWN, WEIGHTS
from robustvit.models.normalize import Normalized
from robustvit.models.registered import BUILDERS, SHALLOWER, timm
from robustvit.models.small_images import ADAPTED
from robustvit.models.weights import HANDLERS, write_safetensors


class NotInTimmError(UserError):
    """timm has no such model, so that only robustvit can load it."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"export: {reason}; keep the checkpoint, which load_model knows")
        self.reason = reason


def export_model(model: nn.Module, folder: Path, preprocessing: Mapping[str, Any] | None = None) -> Path:
    """config.json and model.safetensors; extra state moves into the weights, the normalization into the config.

    timm's models want normalized images: mean and std are in the config, and `timm.data.create_transform` reads them,
    as well as the `preprocessing` of pictures in timm's words: interpolation, crop_pct, crop_mode.
    """
    if not isinstance(model, Normalized) or model.settings is None:
        raise UserError("export: only a model that create_model made, or its checkpoint, knows how timm would build it")
    settings: ModelSettings = model.settings
    if settings.adapters is not None:
        raise NotInTimmError("timm has no models with adapters")
    model = folded(model)
    backbone: Any = model.backbone
    name, shape = SHALLOWER.get(settings.name, (settings.name, {}))
    if is_on_hub(name) or name in BUILDERS:
        raise NotInTimmError(f"timm has no '{name}' of its own")
    size = settings.img_size or 224
    mean, std = ([round(value, 7) for value in (values * 3)[:3]] for values in model.normalization)
    arguments = {"img_size": settings.img_size, "patch_size": settings.patch_size, **shape, **settings.settings}
    if "img_size" not in constructor_parameters(type(backbone)):
        arguments.pop("img_size")
    config = {
        OWN: versions()["robustvit"],
        "architecture": name.partition(".")[0],
        "num_classes": settings.num_classes,
        "num_features": backbone.num_features,
        "model_args": {key: value for key, value in arguments.items() if value is not None},
        "pretrained_cfg": {
            "input_size": [3, size, size],
            "mean": mean,
            "std": std,
            "num_classes": settings.num_classes,
            "interpolation": "bicubic",
            "crop_pct": 1.0,
            "crop_mode": "center",
            **(preprocessing or {}),
            **{key: getattr(backbone, "pretrained_cfg", {}).get(key) for key in ("first_conv", "classifier")},
        },
    }
    problem = _misbuilt(config, backbone)
    if problem and settings.patch_size is not None and type(backbone).__name__ in ADAPTED:
        problem = f"with patch_size {settings.patch_size} it has other strides than timm's settings can express"
    if problem:
        raise NotInTimmError(f"timm would not build '{settings.name}' again ({problem})")
    write_safetensors(backbone, folder / WEIGHTS, {"model": to_dict(settings)}, format="pt")
    write_json(folder / CONFIG, config)
    return folder


def folded(model: nn.Module) -> Normalized:
    """A copy whose state dict holds all of its behavior."""
    assert isinstance(model, Normalized), "every checkpoint of ours holds one"
    model = copy.deepcopy(model)
    for handler in HANDLERS.values():
        handler.fold(model)
    return model


def _misbuilt(config: dict[str, Any], backbone: nn.Module) -> str:
    """What timm alone builds otherwise from the config; nothing is written then."""
    with TemporaryDirectory() as folder:
        write_json(Path(folder) / CONFIG, config)
        try:
            built = timm.create_model(f"local-dir:{folder}", pretrained=False)
            return misfits(backbone.state_dict(), built) or ("" if repr(built) == repr(backbone) else "other layers")
        except Exception as error:  # timm raises whatever its layers do
            return first_line(error)

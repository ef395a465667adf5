"""A model as a folder that timm loads by itself: `timm.create_model('local-dir:FOLDER', pretrained=True)`."""

import copy
import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

from robustvit.core.component import to_dict
from robustvit.core.errors import UserError
from robustvit.core.files import write_atomic, write_json
from robustvit.models.attention_factors import backbone_of, folded
from robustvit.models.create import model_settings
from robustvit.models.normalize import Normalized
from robustvit.models.small_images import ADAPTED


def export_model(model: nn.Module, folder: Path) -> Path:
    """config.json and model.safetensors; attention factors move into the weights, the normalisation into the config.

    timm's models want normalised images: mean and std stand in the config, and `timm.data.create_transform` reads them.
    """
    from safetensors.torch import save

    settings = model_settings(model)
    if settings is None or not isinstance(model, Normalized):
        raise UserError("export: only a model that create_model made, or its checkpoint, knows how timm would build it")
    backbone: Any = backbone_of(folded(copy.deepcopy(model)))
    if settings.patch_size is not None and type(backbone).__name__ in ADAPTED:
        raise UserError(
            f"export: '{settings.name}' with patch_size {settings.patch_size} has other strides than timm can be told; "
            "keep the checkpoint, which load_model knows"
        )
    if not type(backbone).__module__.startswith("timm."):
        raise UserError(f"export: timm has no '{settings.name}'; keep the checkpoint, which load_model knows")
    size = settings.img_size or 224
    arguments = {"img_size": settings.img_size, "patch_size": settings.patch_size, **settings.settings}
    if "img_size" not in type(backbone).__init__.__code__.co_varnames:
        arguments.pop("img_size")
    config = {
        "architecture": settings.name,
        "num_classes": settings.num_classes,
        "num_features": backbone.num_features,
        "model_args": {key: value for key, value in arguments.items() if value is not None},
        "pretrained_cfg": {
            "input_size": [3, size, size],
            "mean": _three(model.mean),
            "std": _three(model.std),
            "num_classes": settings.num_classes,
            "interpolation": "bicubic",
            "crop_pct": 1.0,
            "first_conv": getattr(backbone, "pretrained_cfg", {}).get("first_conv"),
            "classifier": getattr(backbone, "pretrained_cfg", {}).get("classifier"),
        },
    }
    state = {key: value.detach().cpu().contiguous() for key, value in backbone.state_dict().items()}
    data = save(state, metadata={"format": "pt", "robustvit": json.dumps({"model": to_dict(settings)})})
    write_atomic(folder / "model.safetensors", lambda file: file.write(data))
    write_json(folder / "config.json", config)
    return folder


def _three(values: torch.Tensor) -> list[float]:
    return [round(float(value), 7) for value in values.flatten().expand(3)]

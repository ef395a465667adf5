"""timm with models of the papers that it has no name for: importing this gives them one there."""

from collections.abc import Callable
from functools import partial
from typing import Any

import timm as timm
from timm.models import metaformer, model_entrypoint, register_model
from torch import nn

from robustvit.models.stem_vit import StemViT
from robustvit.models.wide_resnet import PreActResNet, WideResNet

_OF_TIMM = ("pretrained_cfg", "pretrained_cfg_overlay", "cache_dir")
"""What timm hands to every builder, for weights that these models don't have."""


def _at_32_pixels(model_class: type[nn.Module], **settings: Any) -> nn.Module:
    """With pixels as they are unless mean and std are given."""
    model = model_class(**{key: value for key, value in settings.items() if key not in _OF_TIMM})
    model.pretrained_cfg = {"input_size": (3, 32, 32), "mean": (0.0,), "std": (1.0,)}  # type: ignore[assignment]
    return model


_POOLFORMER_M12: dict[str, Any] = {
    "depths": [2, 2, 6, 2], "dims": [96, 192, 384, 768], "downsample_norm": None, "norm_layers": metaformer.GroupNorm1,
    "layer_scale_init_values": 1e-6, "res_scale_init_values": None,
    "use_mlp_head": False, "mlp_bias": True, "mlp_act": nn.GELU,
}  # fmt: skip
"""As wide as timm's poolformer_m36, a third as deep; its builder fixes the depths."""
SHALLOWER: dict[str, tuple[str, dict[str, Any]]] = {
    "xcit_medium_12_p16_224": ("xcit_medium_24_p16_224", {"depth": 12, "eta": 1.0}),
    "xcit_large_12_p16_224": ("xcit_large_24_p16_224", {"depth": 12, "eta": 1.0}),
    "cait_s12_224": ("cait_s24_224", {"depth": 12, "init_values": 0.1}),
}
"""timm's own name and its settings; LayerScale 1 and 0.1 as A Light Recipe prints them, where timm has 1e-5."""
BUILDERS: dict[str, Callable[..., nn.Module]] = {
    "wideresnet": partial(_at_32_pixels, WideResNet),
    "wideresnet_28_10": partial(_at_32_pixels, WideResNet, depth=28, width=10),
    "wideresnet_34_10": partial(_at_32_pixels, WideResNet, depth=34, width=10),
    "wideresnet_70_16": partial(_at_32_pixels, WideResNet, depth=70, width=16),
    "wideresnet_94_16": partial(_at_32_pixels, WideResNet, depth=94, width=16),
    "preact_resnet18": partial(_at_32_pixels, PreActResNet),
    "stem_vit_32": partial(_at_32_pixels, StemViT),
    "poolformer_m12": partial(metaformer._create_metaformer, "poolformer_m36", **_POOLFORMER_M12),
    **{name: partial(model_entrypoint(base), **shape) for name, (base, shape) in SHALLOWER.items()},
}


def _register(name: str, build: Callable[..., nn.Module]) -> None:
    def entry(pretrained: bool = False, **settings: Any) -> nn.Module:
        if pretrained:
            raise RuntimeError("nobody has published them under this name")
        return build(**settings)

    entry.__name__ = name
    register_model(entry)


for _name, _build in BUILDERS.items():
    _register(_name, _build)

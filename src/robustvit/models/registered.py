"""Models of the papers that timm has no name for: importing this gives them one there."""

from collections.abc import Callable
from typing import Any

from timm.models import metaformer, model_entrypoint, register_model
from torch import nn

from robustvit.models.wide_resnet import PreActResNet, WideResNet

_OF_TIMM = ("pretrained_cfg", "pretrained_cfg_overlay", "cache_dir")
"""What timm hands to every builder, for weights that these models don't have."""
_OURS: dict[str, tuple[type[nn.Module], dict[str, Any]]] = {
    "wideresnet": (WideResNet, {}),
    "wideresnet_28_10": (WideResNet, {"depth": 28, "width": 10}),
    "wideresnet_34_10": (WideResNet, {"depth": 34, "width": 10}),
    "wideresnet_70_16": (WideResNet, {"depth": 70, "width": 16}),
    "wideresnet_94_16": (WideResNet, {"depth": 94, "width": 16}),
    "preact_resnet18": (PreActResNet, {}),
}
SHALLOWER: dict[str, tuple[str, dict[str, Any]]] = {
    "xcit_medium_12_p16_224": ("xcit_medium_24_p16_224", {"depth": 12, "eta": 1.0}),
    "xcit_large_12_p16_224": ("xcit_large_24_p16_224", {"depth": 12, "eta": 1.0}),
    "cait_s12_224": ("cait_s24_224", {"depth": 12, "init_values": 0.1}),
}
"""timm's own name and what to tell it; LayerScale 1 and 0.1 as A Light Recipe prints them, where timm has 1e-5."""


def _register(name: str, build: Callable[..., nn.Module]) -> None:
    def entry(pretrained: bool = False, **settings: Any) -> nn.Module:
        if pretrained:
            raise RuntimeError("nobody has published them under this name")
        return build(name, **settings)

    entry.__name__ = name
    register_model(entry)


def _of_ours(name: str, **settings: Any) -> nn.Module:
    """At 32 px, with pixels as they are unless mean and std are given."""
    kind, shape = _OURS[name]
    made = kind(**{**shape, **{key: value for key, value in settings.items() if key not in _OF_TIMM}})
    made.pretrained_cfg = {"input_size": (3, 32, 32), "mean": (0.0,), "std": (1.0,)}  # type: ignore[assignment]
    return made


def _shallower(name: str, **settings: Any) -> nn.Module:
    timm_name, shape = SHALLOWER[name]
    model: nn.Module = model_entrypoint(timm_name)(**{**shape, **settings})
    return model


def _poolformer_m12(name: str, **settings: Any) -> nn.Module:
    """As wide as timm's poolformer_m36, a third as deep; its builder fixes the depths."""
    shape = {"depths": [2, 2, 6, 2], "dims": [96, 192, 384, 768], "downsample_norm": None, "mlp_act": nn.GELU}
    scale = {"layer_scale_init_values": 1e-6, "res_scale_init_values": None, "use_mlp_head": False, "mlp_bias": True}
    model: nn.Module = metaformer._create_metaformer(  # type: ignore[no-untyped-call]
        "poolformer_m36", **{**shape, **scale, "norm_layers": metaformer.GroupNorm1, **settings}
    )
    return model


for _names, _build in ((_OURS, _of_ours), (SHALLOWER, _shallower), (("poolformer_m12",), _poolformer_m12)):
    for _name in _names:
        _register(_name, _build)

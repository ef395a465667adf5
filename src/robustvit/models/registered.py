"""Models of the papers that timm has no name for: importing this gives them one there."""

from typing import Any

from timm.models import metaformer, model_entrypoint, register_model
from torch import nn

from robustvit.models.wide_resnet import PreActResNet, WideResNet

_OF_TIMM = ("pretrained_cfg", "pretrained_cfg_overlay", "cache_dir")
"""What timm hands to every builder, for weights that these models don't have."""


def _plain(model: type[nn.Module], pretrained: bool, settings: dict[str, Any]) -> nn.Module:
    """A model of ours: 32 px, pixels as they are unless mean and std are given."""
    _refuse_pretrained(pretrained)
    made = model(**{key: value for key, value in settings.items() if key not in _OF_TIMM})
    made.pretrained_cfg = {"input_size": (3, 32, 32), "mean": (0.0,), "std": (1.0,)}  # type: ignore[assignment]
    return made


def _refuse_pretrained(pretrained: bool) -> None:
    if pretrained:
        raise RuntimeError("nobody has published them under this name")


@register_model
def wideresnet(pretrained: bool = False, **settings: Any) -> nn.Module:
    """Of any depth and width."""
    return _plain(WideResNet, pretrained, settings)


@register_model
def wideresnet_28_10(pretrained: bool = False, **settings: Any) -> nn.Module:
    return _plain(WideResNet, pretrained, {"depth": 28, "width": 10, **settings})


@register_model
def wideresnet_34_10(pretrained: bool = False, **settings: Any) -> nn.Module:
    return _plain(WideResNet, pretrained, {"depth": 34, "width": 10, **settings})


@register_model
def wideresnet_70_16(pretrained: bool = False, **settings: Any) -> nn.Module:
    return _plain(WideResNet, pretrained, {"depth": 70, "width": 16, **settings})


@register_model
def wideresnet_94_16(pretrained: bool = False, **settings: Any) -> nn.Module:
    return _plain(WideResNet, pretrained, {"depth": 94, "width": 16, **settings})


@register_model
def preact_resnet18(pretrained: bool = False, **settings: Any) -> nn.Module:
    return _plain(PreActResNet, pretrained, settings)


SHALLOWER = {
    "xcit_medium_12_p16_224": ("xcit_medium_24_p16_224", {"depth": 12, "eta": 1.0}),
    "xcit_large_12_p16_224": ("xcit_large_24_p16_224", {"depth": 12, "eta": 1.0}),
    "cait_s12_224": ("cait_s24_224", {"depth": 12, "init_values": 0.1}),
}
"""timm's own name and what to tell it; LayerScale 1 and 0.1 as A Light Recipe prints them, where timm has 1e-5."""


def _shallower(name: str, pretrained: bool, settings: dict[str, Any]) -> nn.Module:
    _refuse_pretrained(pretrained)
    timms, shape = SHALLOWER[name]
    model: nn.Module = model_entrypoint(timms)(**{**shape, **settings})
    return model


@register_model
def xcit_medium_12_p16_224(pretrained: bool = False, **settings: Any) -> nn.Module:
    return _shallower("xcit_medium_12_p16_224", pretrained, settings)


@register_model
def xcit_large_12_p16_224(pretrained: bool = False, **settings: Any) -> nn.Module:
    return _shallower("xcit_large_12_p16_224", pretrained, settings)


@register_model
def cait_s12_224(pretrained: bool = False, **settings: Any) -> nn.Module:
    return _shallower("cait_s12_224", pretrained, settings)


@register_model
def poolformer_m12(pretrained: bool = False, **settings: Any) -> nn.Module:
    """As wide as timm's poolformer_m36, a third as deep; its builder fixes the depths."""
    _refuse_pretrained(pretrained)
    shape = {"depths": [2, 2, 6, 2], "dims": [96, 192, 384, 768], "downsample_norm": None, "mlp_act": nn.GELU}
    scale = {"layer_scale_init_values": 1e-6, "res_scale_init_values": None, "use_mlp_head": False, "mlp_bias": True}
    model: nn.Module = metaformer._create_metaformer(
        "poolformer_m36", **{**shape, **scale, "norm_layers": metaformer.GroupNorm1, **settings}
    )
    return model

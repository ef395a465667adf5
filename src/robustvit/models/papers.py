"""The papers' models: how to build each here, and the sizes that the papers print."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from robustvit.models.cost import Cost, model_cost
from robustvit.models.create import ModelSettings


@dataclass(frozen=True)
class PaperModel:
    """`parameters` in millions and `multiply_adds` in billions, as printed; None: not printed."""

    title: str
    name: str
    parameters: float | None = None
    multiply_adds: float | None = None
    img_size: int = 224
    patch_size: int | None = None
    num_classes: int = 1000
    settings: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""

    def cost(self) -> Cost:
        """Counted on the meta device, which needs no memory for weights."""
        size = self.img_size if self.patch_size else None
        settings = ModelSettings(self.name, self.num_classes, size, self.patch_size, settings=self.settings)
        with torch.device("meta"):
            return model_cost(settings.build(), self.img_size)


NO_ATTENTION = "printed without the products QK^T and AV"
ROUNDED = "printed in whole millions"
OTHER = "printed otherwise, for a reason that the paper doesn't give"
_cifar = partial(PaperModel, img_size=32, num_classes=10)

PAPER_MODELS: dict[str, tuple[PaperModel, ...]] = {
    "Vision Transformers Beat WideResNets": (
        _cifar("ViT-B/2", "vit_base_patch16_224", 85, 21.85, patch_size=2, note=NO_ATTENTION),
        _cifar("ViT-L/2", "vit_large_patch16_224", 302, patch_size=2),
        _cifar("WRN-28-10", "wideresnet_28_10", 36, settings={"act_layer": "silu"}, note=ROUNDED),
        _cifar("WRN-70-16", "wideresnet_70_16", 267, 38.81, settings={"act_layer": "silu"}),
        _cifar("WRN-94-16", "wideresnet_94_16", settings={"act_layer": "silu"}),
    ),
    "A Light Recipe": (
        PaperModel("DeiT-S", "deit_small_patch16_224", 22, 4.61),
        PaperModel("CaiT-S12", "cait_s12_224", 25, 4.76, note=ROUNDED),
        PaperModel("XCiT-N12", "xcit_nano_12_p16_224", 3, 0.56, note=ROUNDED),
        PaperModel("XCiT-S12", "xcit_small_12_p16_224", 26, 4.81),
        PaperModel("XCiT-M12", "xcit_medium_12_p16_224", 46, 8.54),
        PaperModel("XCiT-L12", "xcit_large_12_p16_224", 104, 18.97),
        PaperModel("PoolFormer-M12", "poolformer_m12", 22, 3.22, note=ROUNDED),
        PaperModel("ConvNeXt-T", "convnext_tiny", 29, 4.50, note=ROUNDED),
        PaperModel("ResNet-50, GELU", "resnet50", 25, 4.11, settings={"act_layer": "gelu"}, note=ROUNDED),
        PaperModel("WRN-50-2", "wide_resnet50_2", 68, 11.47, note=ROUNDED),
        PaperModel("ResNet-50, ReLU", "resnet50"),
        _cifar("XCiT-S12/4 at 32 px", "xcit_small_12_p16_224", patch_size=4),
        _cifar("ResNet-50 at 32 px", "resnet50", patch_size=1),
    ),
    "AAS": (
        _cifar("ViT-Ti/4", "vit_tiny_patch16_224", patch_size=4),
        _cifar("ViT-S/4", "vit_small_patch16_224", patch_size=4),
        _cifar("ViT-B/4", "vit_base_patch16_224", patch_size=4),
        _cifar("WRN-34-10", "wideresnet_34_10"),
        _cifar("PreAct ResNet-18", "preact_resnet18"),
        PaperModel("Swin-T", "swin_tiny_patch4_window7_224"),
        PaperModel("LeViT-256", "levit_256"),
    ),
    "Understanding Robustness of Transformers": (
        PaperModel("ViT-B/32", "vit_base_patch32_384", 86, img_size=384, note=OTHER),
        PaperModel("ViT-B/16", "vit_base_patch16_384", 86, img_size=384, note=ROUNDED),
        PaperModel("ViT-L/32", "vit_large_patch32_384", 307, img_size=384),
        PaperModel("ViT-L/16", "vit_large_patch16_384", 307, img_size=384),
        PaperModel("ViT-H/14", "vit_huge_patch14_224", 632),
        PaperModel("BiT ResNet-50x1", "resnetv2_50x1_bit", 23, img_size=384, note=OTHER),
        PaperModel("BiT ResNet-101x1", "resnetv2_101x1_bit", 45, img_size=384, note=ROUNDED),
        PaperModel("BiT ResNet-50x3", "resnetv2_50x3_bit", 207, img_size=384, note=OTHER),
        PaperModel("BiT ResNet-101x3", "resnetv2_101x3_bit", 401, img_size=384, note=OTHER),
        PaperModel("BiT ResNet-152x4", "resnetv2_152x4_bit", 965, img_size=384, note=OTHER),
    ),
}

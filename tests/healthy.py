"""Models that mask nothing: what a probe must be silent about, trained as the shipped recipes train."""

from robustvit.training import Recipe, recipe_from

FAMILIES: dict[str, str] = {
    "ViT": "",
    "XCiT": "name: xcit_nano_12_p8_224, img_size: 8, patch_size: 2, "
    "settings: {embed_dim: 64, depth: 3, num_heads: 4, cls_attn_layers: 1}",
    "Swin": "name: swin_tiny_patch4_window7_224, img_size: 8, patch_size: 1, "
    "settings: {window_size: 4, embed_dim: 32, depths: [2, 2], num_heads: [2, 4]}",
    "ResNet": "name: resnet18, patch_size: 1, settings: {channels: [16, 32, 64, 64], layers: [1, 1, 1, 1]}",
}
"""The model of each family; the ViT is that of the recipes."""


def digits_recipes(seeds: int) -> dict[str, Recipe]:
    """By a title: the digits recipes with half of their epochs, for every family and so many seeds."""
    recipes = {}
    for objective, epochs in (("standard", 12), ("trades", 10)):
        for family, model in FAMILIES.items():
            for seed in range(seeds):
                overrides = [f"name={family.lower()}-{objective}-{seed}", f"epochs={epochs}", f"seed={seed}"]
                overrides += ["optimizer.lr=2e-3"] if family == "Swin" else []  # at 6e-3 it hardly learns
                overrides += [f"model={{{model}, num_classes: 10, mean: [0.3], std: [0.38]}}"] if model else []
                recipes[f"{family}, {objective}, seed {seed}"] = recipe_from(f"digits/{objective}", overrides)
    return recipes

"""`robustvit convert`."""

from pathlib import Path
from typing import Annotated

import typer

from robustvit.cli.options import numbers, optional


def convert(
    weights: Annotated[Path, typer.Argument(metavar="W.npz", help="ViT weights of big_vision or its relatives.")],
    mean: Annotated[str, typer.Option(help="Of the images that it was trained on; 0.5 for values in [-1, 1].")],
    std: Annotated[str, typer.Option(help="As for --mean.")],
    out: Annotated[Path | None, optional(help="The checkpoint; default: W.safetensors.")] = None,
    weights_key: Annotated[str | None, optional(help="The part of the tree with the ViT, if there is more.")] = None,
    img_size: Annotated[int | None, optional(help="For fixed positions (sincos2d), which the file lacks.")] = None,
) -> None:
    """Turn ViT weights of JAX (big_vision, vision_transformer, scenic) into a checkpoint: the same logits.

    `robustvit export --format npz` is the way back. Example: robustvit convert vit.npz --mean 0.5 --std 0.5
    """
    from robustvit.core.errors import UserError
    from robustvit.models.jax_weights import convert_jax
    from robustvit.models.normalize import Normalization

    if out is not None and out.suffix != ".safetensors":
        raise UserError(f"--out {out}: a file that ends in .safetensors")
    out = out or weights.with_suffix(".safetensors")
    given = Normalization(numbers(mean, "--mean"), numbers(std, "--std"))
    made = convert_jax(weights, given, out, weights_key, img_size).settings
    more = made.settings
    typer.echo(
        f"{out}: ViT of width {more['embed_dim']}, depth {more['depth']}, "
        f"{more['num_heads']} heads, patches of {made.patch_size} in {made.img_size} pixels, pooling "
        f"{more['global_pool']}, {made.num_classes} classes"
    )

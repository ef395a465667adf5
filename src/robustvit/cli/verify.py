"""`robustvit verify`."""

from pathlib import Path
from typing import Annotated

import typer

from robustvit.cli.options import (
    BatchSize,
    CheckpointName,
    Data,
    Device,
    ImageSize,
    Mean,
    NumClasses,
    SplitName,
    Std,
    parse_numbers,
)  # fmt: skip


def verify(
    file: Annotated[Path, typer.Argument(help="The adversarial.npy that evaluate --save-images wrote.")],
    model: Annotated[
        str, typer.Option(help="A run folder, a checkpoint, a timm model's name or module:function, as for evaluate.")
    ],
    data: Data = None,
    split: SplitName = "test",
    batch_size: BatchSize = 128,
    device: Device = "cpu",
    checkpoint: CheckpointName = None,
    num_classes: NumClasses = None,
    img_size: ImageSize = None,
    mean: Mean = None,
    std: Std = None,
) -> None:
    """Judge saved adversarial images on any model.

    Example: robustvit verify runs/mine/eval/pgd-20-inf-8_255-1a2b3c4d/adversarial.npy --model runs/other
    """
    from robustvit.core.config import validated
    from robustvit.data.base import Split
    from robustvit.data.open import dataset_by_name
    from robustvit.evaluation import verify as judge
    from robustvit.models.reference import ModelHints, resolve_model

    hints = ModelHints(
        num_classes=num_classes,
        img_size=img_size,
        mean=parse_numbers(mean, "--mean"),
        std=parse_numbers(std, "--std"),
        checkpoint=checkpoint,
        command_line=True,
    )
    found = resolve_model(model, hints)
    verdict = judge(
        file,
        found.module(),
        data=dataset_by_name(data) if data is not None else (found.recipe or {}).get("data"),
        split=validated(Split, split, "--split"),
        batch_size=batch_size,
        device=device,
    )
    share = f" ({100 * verdict.fooled / verdict.images:.1f} %)" if verdict.images else ""
    typer.echo(f"{verdict.fooled} of {verdict.images} images fool {found.title}{share}")
    if verdict.protocol == "paper":
        typer.echo("they were made and judged on a model with scaled attention, as protocol=paper does")
    if verdict.inside is None:
        typer.echo("without --data it isn't known how far they are from the clean images")
    else:
        typer.echo(f"{verdict.inside} lie inside {verdict.threat}")
        typer.echo(f"it gets {verdict.right} of the clean images right; {verdict.fooled_of_right} of these are fooled")

"""`robustvit verify`."""

from pathlib import Path
from typing import Annotated

import typer

from robustvit.cli.options import BatchSize, CheckpointName, Data, Device, ImageSize, Mean, NumClasses, SplitName, Std


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
    from robustvit.cli.what import Hints, find_subject, numbers
    from robustvit.core.config import validated
    from robustvit.data.base import Split
    from robustvit.data.open import dataset_by_name
    from robustvit.evaluation import verify as judge

    hints = Hints(
        num_classes=num_classes,
        img_size=img_size,
        mean=numbers(mean, "--mean"),
        std=numbers(std, "--std"),
        checkpoint=checkpoint,
    )
    found = find_subject(model, hints)
    verdict = judge(
        file,
        found.model,
        data=dataset_by_name(data) if data is not None else found.data,
        split=validated(Split, split, "--split"),
        batch_size=batch_size,
        device=device,
    )
    share = f" ({100 * verdict.fooled / verdict.images:.1f} %)" if verdict.images else ""
    typer.echo(f"{verdict.fooled} of {verdict.images} images fool {found.name}{share}")
    if verdict.protocol == "paper":
        typer.echo("they were made and judged on a model with scaled attention, as protocol=paper does")
    if verdict.inside is None:
        typer.echo("without --data it isn't known how far they are from the clean images")
    else:
        typer.echo(f"{verdict.inside} lie inside {verdict.threat}")
        typer.echo(f"it gets {verdict.right} of the clean images right; {verdict.fooled_of_right} of these are fooled")

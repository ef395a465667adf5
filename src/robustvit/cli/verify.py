"""`robustvit verify`."""

from pathlib import Path
from typing import Annotated

import typer


def verify(
    file: Annotated[Path, typer.Argument(help="The adversarial.npy that evaluate --save-images wrote.")],
    model: Annotated[
        str, typer.Option(help="A run folder, a checkpoint, a timm model's name or module:function, as for evaluate.")
    ],
    data: Annotated[
        str | None, typer.Option(help="The clean images, to compare with; default: the run's.", show_default=False)
    ] = None,
    split: Annotated[str, typer.Option(help="train or test.")] = "test",
    batch_size: Annotated[int, typer.Option()] = 128,
    device: Annotated[str, typer.Option()] = "cpu",
    checkpoint: Annotated[str | None, typer.Option(help="Of a run: best, last ...", show_default=False)] = None,
    num_classes: Annotated[int | None, typer.Option(show_default=False)] = None,
    img_size: Annotated[int | None, typer.Option(show_default=False)] = None,
    mean: Annotated[str | None, typer.Option(help="Such as 0.49,0.48,0.45.", show_default=False)] = None,
    std: Annotated[str | None, typer.Option(show_default=False)] = None,
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
    if verdict.inside is None:
        typer.echo("without --data it isn't known how far they are from the clean images")
    else:
        typer.echo(f"{verdict.inside} lie inside {verdict.threat}")
        typer.echo(f"it gets {verdict.right} of the clean images right; {verdict.fooled_of_right} of these are fooled")

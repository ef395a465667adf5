"""`robustvit verify`."""

from pathlib import Path
from typing import Annotated

import typer

from robustvit.cli.options import HeadName, ModelArgument, ModelOptions, with_options


@with_options
def verify(
    file: Annotated[Path, typer.Argument(help="The adversarial.npy that evaluate --save-images wrote.")],
    reference: ModelArgument,
    options: ModelOptions,
    head: HeadName = None,
) -> None:
    """Judge saved adversarial images on any model.

    Example: robustvit verify runs/mine/eval/pgd-20-inf-8_255-1a2b3c4d/adversarial.npy runs/other
    """
    from robustvit.core.config import validated
    from robustvit.data.base import Split
    from robustvit.data.open import dataset_by_name
    from robustvit.evaluation import verify as judge
    from robustvit.models.heads import through
    from robustvit.models.reference import resolve_model

    ref = resolve_model(reference, options.hints(model=options.model))
    data = dataset_by_name(options.data) if options.data is not None else (ref.recipe or {}).get("data")
    split, size = validated(Split, options.split, "--split"), options.batch_size or 128
    verdict = judge(file, through(ref.module(), head), data=data, split=split, batch_size=size, device=options.device)
    fraction = f" ({100 * verdict.fooled / verdict.images:.1f} %)" if verdict.images else ""
    typer.echo(f"{verdict.fooled} of {verdict.images} images fool {ref.title}{fraction}")
    for note in verdict.notes:
        typer.echo(f"when they were made: {note}")
    if verdict.inside is None:
        typer.echo("without --data it isn't known how far they are from the clean images")
    else:
        typer.echo(f"{verdict.inside} lie inside {verdict.threat}")
        typer.echo(f"it gets {verdict.right} of the clean images right; {verdict.fooled_of_right} of these are fooled")

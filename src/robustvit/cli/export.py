"""`robustvit export`."""

from pathlib import Path
from typing import Annotated

import typer


def export(
    what: Annotated[
        str, typer.Argument(help="A run folder, or a checkpoint (.safetensors).", metavar="RUN|CHECKPOINT")
    ],
    out: Annotated[
        Path | None, typer.Option("--out", help="The folder; default: RUN/export.", show_default=False)
    ] = None,
    checkpoint: Annotated[str | None, typer.Option(help="Of a run: best, last or another.", show_default=False)] = None,
) -> None:
    """Write a model as a folder that timm loads: timm.create_model('local-dir:FOLDER', pretrained=True).

    Example: robustvit export runs/digits-trades
    """
    from robustvit.cli.what import Hints, find_subject
    from robustvit.core.errors import UserError
    from robustvit.models.export import export_model

    if ":" in what:
        raise UserError(f"{what}: export takes a run folder or a checkpoint")
    found = find_subject(what, Hints(checkpoint=checkpoint))
    folder = out or (found.run / "export" if found.run else Path("runs") / found.name / "export")
    typer.echo(str(export_model(found.model, folder)))

"""`robustvit merge`."""

from pathlib import Path
from typing import Annotated

import typer


def merge(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders of several machines.")],
    into: Annotated[Path, typer.Option(help="The run folder that gets what it lacks.")],
) -> None:
    """Join evaluations that machines without a shared folder have done parts of.

    Example: robustvit merge copied/machine-1 copied/machine-2 --into runs/mine
    """
    from robustvit.evaluation.join import join_evaluations

    for joined in join_evaluations(runs, into):
        typer.echo(f"{joined.folder}: {joined.rows:,} rows added")
    typer.echo(f"the evaluate command with --run {into} computes what is missing and writes the results")

"""`robustvit report`."""

from pathlib import Path
from typing import Annotated

import typer

from robustvit.cli.options import optional


def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders; several are shown side by side.", metavar="RUN...")],
    out: Annotated[Path | None, optional("--out", help="The page; default: report.html.")] = None,
    scaling: Annotated[bool, typer.Option("--scaling", help="Plot error against the size of the models.")] = False,
    group: Annotated[
        str | None, optional("--group", help="Label these runs for --scaling, in their folders; '' removes it.")
    ] = None,
) -> None:
    """Write one self-contained HTML page about runs.

    Example: robustvit report runs/digits-standard runs/digits-trades
    """
    from robustvit.reporting import report as write_report

    typer.echo(str(write_report(runs, out, scaling=scaling, group=group)))

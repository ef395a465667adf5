"""`robustvit train`."""

from typing import Annotated

import typer

from robustvit.cli.options import Overrides, RunOption


def train(
    recipe: Annotated[str, typer.Argument(help="A recipe that ships with robustvit, or a YAML file.")],
    run: RunOption = None,
    override: Overrides = None,
) -> None:
    """Train a recipe; stopped or killed, the same command goes on.

    Example: robustvit train digits/trades --run runs/mine -o threat.eps=0.1
    """
    from robustvit.training import train as run_training

    folder = run_training(recipe, run=run, overrides=override or [])
    typer.echo(str(folder.path))

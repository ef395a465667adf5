"""`robustvit train`."""

from typing import Annotated

import typer

from robustvit.cli.options import Overrides, RecipeArgument, RunOption


def train(
    recipe: RecipeArgument,
    run: RunOption = None,
    override: Overrides = None,
    processes: Annotated[
        int, typer.Option(help="So many of one thread each on this machine; torchrun starts them on several.")
    ] = 1,
) -> None:
    """Train a recipe; stopped or killed, the same command resumes.

    Example: robustvit train digits/trades --run runs/mine -o threat.eps=0.1
    """
    from robustvit.cli.launch import STEP_SECONDS, launched_world
    from robustvit.core.errors import UserError
    from robustvit.training import train as run_training
    from robustvit.training.base_recipe import any_recipe

    checked = any_recipe(recipe, override or [])
    world = launched_world(checked.device, STEP_SECONDS)
    if processes > 1 and world.size > 1:
        raise UserError("--processes: torchrun has started several already; leave it out")
    folder = run_training(checked, run=run, world=None if processes > 1 else world, processes=processes)
    if not world.is_first:
        return
    typer.echo(str(folder.path))

"""`robustvit train`."""

import typer

from robustvit.cli.options import Overrides, RecipeArgument, RunOption


def train(recipe: RecipeArgument, run: RunOption = None, override: Overrides = None) -> None:
    """Train a recipe; stopped or killed, the same command resumes.

    Example: robustvit train digits/trades --run runs/mine -o threat.eps=0.1
    """
    from robustvit.cli.launch import one_process
    from robustvit.training import train as run_training
    from robustvit.training.base_recipe import any_recipe

    checked = any_recipe(recipe, override or [])
    folder = run_training(checked, run=run, world=one_process("train", checked.device))
    typer.echo(str(folder.path))

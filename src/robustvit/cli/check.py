"""`robustvit check`."""

from typing import Annotated

import typer

from robustvit.cli.options import Overrides


def check(
    recipe: Annotated[str, typer.Argument(help="A recipe that ships with robustvit, or a YAML file.")],
    override: Overrides = None,
) -> None:
    """Check a recipe without training it: its settings resolved, its model and data as they would be.

    Example: robustvit check digits/trades -o objective.beta=5
    """
    import torch
    import yaml

    from robustvit.models import model_cost
    from robustvit.training import recipe_from
    from robustvit.training.trainer import open_recipe

    checked = recipe_from(recipe, override or [])
    images, held, model = open_recipe(checked)
    size = images.take(torch.tensor([0]))[0].shape[-1]
    typer.echo(yaml.safe_dump(checked.to_dict(), sort_keys=False).rstrip())
    typer.echo(f"\nmodel   {model_cost(model, size)}")
    held_text = f", {len(held)} held out" if held is not None else ""
    typer.echo(f"data    {images.title}: {len(images)} images{held_text}")
    for phase in checked.phases:
        steps = phase.epochs * max(1, len(images) // phase.batch_size)
        typer.echo(f"phase   {phase.name}: {phase.epochs} epochs, {steps} steps of {phase.batch_size} images")

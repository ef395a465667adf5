"""`robustvit check`."""

from pathlib import Path
from typing import Annotated

import typer

from robustvit.cli.options import Overrides, RecipeArgument
from robustvit.cli.show_batch import write_batch
from robustvit.core.errors import UserError


def check(
    recipe: RecipeArgument,
    override: Overrides = None,
    show_batch: Annotated[
        bool, typer.Option("--show-batch", help="Also write NAME-batch.png: a training batch as the model gets it.")
    ] = False,
    step: Annotated[int, typer.Option("--step", help="Which batch of the first phase --show-batch shows.")] = 0,
) -> None:
    """Check a recipe without training it: its settings resolved, its model and data as they would be.

    Example: robustvit check digits/trades -o objective.beta=5 -o augmentation=pad_crop --show-batch
    """
    import torch
    import yaml

    from robustvit.models import model_cost
    from robustvit.models.create import describe
    from robustvit.training import recipe_from
    from robustvit.training.opening import open_recipe, phase_batches

    checked = recipe_from(recipe, override or [])
    images, held, model = open_recipe(checked)
    started = checked.start(model) if checked.start is not None else None  # before the settings are printed
    picture = Path(f"{Path(checked.name).name}-batch.png")
    num_classes = describe(model)["num_classes"]
    batches = [phase_batches(checked, phase, images, num_classes) for phase in checked.phases]
    if show_batch:
        if not 0 <= step < len(batches[0]):
            raise UserError(f"--step {step}: the phase has the steps 0 to {len(batches[0]) - 1}")
        write_batch(batches[0], step, picture)
    size = images.take(torch.tensor([0]))[0].shape[-1]
    typer.echo(yaml.safe_dump(checked.to_dict(), sort_keys=False).rstrip())
    typer.echo(f"\nmodel   {model_cost(model, size)}")
    if started is not None:
        typer.echo(f"start   {started}")
    held_text = f", {len(held)} held out" if held is not None else ""
    typer.echo(f"data    {images.title}: {len(images)} images{held_text}")
    for phase, feed in zip(checked.phases, batches, strict=True):
        generated = f", {100 * phase.generated.ratio:.4g} % of them generated" if phase.generated else ""
        steps = f"{len(feed)} steps of {phase.batch_size} images{generated}"
        typer.echo(f"phase   {phase.name}: {phase.epochs} epochs, {steps}")
    if show_batch:
        typer.echo(f"batch   {picture}")

"""`robustvit check`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from robustvit.cli.options import Overrides, RecipeArgument
from robustvit.core.errors import UserError

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor

    from robustvit.data import Batch, Batches


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

    from robustvit.core.world import World, resolve_device
    from robustvit.models import model_cost
    from robustvit.models.create import describe
    from robustvit.models.precision import check_precision
    from robustvit.training.base_recipe import any_recipe
    from robustvit.training.opening import never_trained, open_recipe, phase_batches
    from robustvit.training.parts import Parts
    from robustvit.training.recipe import Recipe

    any_task = any_recipe(recipe, override or [])
    if not isinstance(any_task, Recipe):
        typer.echo(yaml.safe_dump(any_task.to_dict(), sort_keys=False).rstrip())
        return
    checked = any_task
    device = resolve_device(checked.device)
    check_precision(checked.precision, device)
    images, held, model = open_recipe(checked)
    started = checked.start(model) if checked.start is not None else None  # before the settings are printed
    picture = Path(f"{Path(checked.name).name}-batch.png")
    num_classes = describe(model)["num_classes"]
    batches = [phase_batches(checked, phase, images, num_classes) for phase in checked.phases]
    for phase, feed in zip(checked.resolved(device).phases, batches, strict=True):
        Parts.of(feed.rows, phase.parts, World())  # which refuses a batch that can't be cut
    if show_batch:
        if not 0 <= step < len(batches[0]):
            raise UserError(f"--step {step}: the phase has the steps 0 to {len(batches[0]) - 1}")
        write_batch(batches[0], step, picture)
    size = images.take(torch.tensor([0]))[0].shape[-1]
    typer.echo(yaml.safe_dump(checked.to_dict(), sort_keys=False).rstrip())
    typer.echo(f"\nmodel   {model_cost(model, size)}")
    if started is not None:
        typer.echo(f"start   {started}")
    if problem := never_trained(checked, model, started):
        typer.echo(f"warning {problem}")
    held_text = f", {len(held)} held out" if held is not None else ""
    typer.echo(f"data    {images.title}: {len(images)} images{held_text}")
    for phase, feed in zip(checked.phases, batches, strict=True):
        generated = f", {100 * phase.generated.ratio:.4g} % of them generated" if phase.generated else ""
        steps = f"{len(feed)} steps of {phase.batch_size} images{generated}"
        typer.echo(f"phase   {phase.name}: {phase.epochs} epochs, {steps}")
    if show_batch:
        typer.echo(f"batch   {picture}")


_MOST, _COLUMNS = 64, 8
_TILE, _GAP, _LINE = 128, 8, 16
_REAL, _GENERATED = "#8a8a8a", "#e07b00"


def write_batch(batches: "Batches", step: int, path: Path) -> None:
    """Images spread evenly over the batch, their labels below, generated ones in a frame of their own color."""
    from PIL import Image, ImageDraw

    from robustvit.core.files import write_atomic

    batch = batches[step]
    chosen = [row * len(batch.y) // min(_MOST, len(batch.y)) for row in range(min(_MOST, len(batch.y)))]
    tiles = [_tile(batch, row) for row in chosen]
    width, height = _TILE + 2 * _GAP, _TILE + 2 * _GAP + _LINE
    lines = -(-len(tiles) // _COLUMNS)
    head = 2 * _LINE + _GAP
    sheet = Image.new("RGB", (_COLUMNS * width + _GAP, head + lines * height), "white")
    pen = ImageDraw.Draw(sheet)
    pen.text((_GAP, _GAP), _title(batches, batch, step, len(tiles)), fill="black")
    pen.text((_GAP, _GAP + _LINE), "real", fill=_REAL)
    if batch.is_generated.any():
        pen.text((_GAP + 40, _GAP + _LINE), "generated", fill=_GENERATED)
    for number, (row, tile) in enumerate(zip(chosen, tiles, strict=True)):
        left, top = _GAP + number % _COLUMNS * width, head + number // _COLUMNS * height
        color = _GENERATED if bool(batch.is_generated[row]) else _REAL
        pen.rectangle((left - 3, top - 3, left + _TILE + 2, top + _TILE + 2), outline=color, width=3)
        sheet.paste(tile, (left, top))
        pen.text((left, top + _TILE + 4), label_text(batch.y[row]), fill="black")
    write_atomic(path, lambda file: sheet.save(file, "PNG"))


def label_text(label: "Tensor") -> str:
    """A class, or the classes of a blend with their weights, the largest first."""
    if label.ndim == 0:
        return str(int(label))
    weights, classes = label.sort(descending=True)
    pairs = zip(classes.tolist(), weights.tolist(), strict=True)
    return " + ".join(f"{k} ({weight:.2f})" for k, weight in pairs if weight > 0)


def _tile(batch: "Batch", row: int) -> "Image":
    from PIL import Image

    from robustvit.data import as_pixels

    levels = (as_pixels(batch.images[row]) * 255).round().byte().permute(1, 2, 0)
    small = max(levels.shape[:2]) < _TILE  # pixel by pixel: smoothing would hide what was done
    method = Image.Resampling.NEAREST if small else Image.Resampling.LANCZOS
    return Image.fromarray(levels.numpy()).resize((_TILE, _TILE), method)


def _title(batches: "Batches", batch: "Batch", step: int, shown: int) -> str:
    parts = [f"step {step} of {len(batches)}", f"{shown} of {len(batch.y)} images"]
    if batch.is_generated.any():
        parts.append(f"{int(batch.is_generated.sum())} generated")
    if batches.repeats:
        parts.append(f"the batch as it is, then {batches.repeats} augmented copies")
    if batches.intensity is not None:
        parts.append(f"intensity {100 * batches.strength(step):.0f} %")
    return ", ".join(parts)

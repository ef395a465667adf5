"""`robustvit export`."""

from pathlib import Path
from typing import Annotated

import typer

from robustvit.cli.options import CheckpointName, optional


def export(
    reference: Annotated[str, typer.Argument(help="A run folder, or a checkpoint (.safetensors).", metavar="MODEL")],
    out: Annotated[Path | None, optional("--out", help="The folder; default: RUN/export.")] = None,
    checkpoint: CheckpointName = None,
) -> None:
    """Write a model as a folder that timm loads: timm.create_model('local-dir:FOLDER', pretrained=True).

    Example: robustvit export runs/digits-trades
    """
    from robustvit.core.config import validated
    from robustvit.core.errors import UserError
    from robustvit.core.files import is_file, is_folder
    from robustvit.core.run import RunFolder
    from robustvit.data.base import AnyDataset
    from robustvit.models.export import export_model
    from robustvit.models.hints import ModelHints
    from robustvit.models.reference import resolve_model
    from robustvit.models.weights import load_state

    path = Path(reference)
    if not is_folder(path) and (path.suffix != ".safetensors" or not load_state(path)[1].get("model")):
        raise UserError(f"{reference}: export takes a run folder, or a checkpoint (.safetensors) that robustvit wrote")
    ref = resolve_model(reference, ModelHints(checkpoint=checkpoint, command_line=True))
    above = path.parent.parent  # of RUN/checkpoints/last.safetensors
    folder = out or (above if is_file(RunFolder(above).recipe) else ref.folder) / "export"
    data = None if ref.recipe is None else validated(AnyDataset, ref.recipe.get("data"), "recipe.data")
    preprocess = getattr(data, "preprocess", None)
    typer.echo(str(export_model(ref.module(), folder, None if preprocess is None else preprocess.timm_config())))

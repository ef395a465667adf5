"""`robustvit export`."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from robustvit.cli.options import CheckpointName, optional


class Format(StrEnum):
    TIMM = "timm"
    NPZ = "npz"
    ONNX = "onnx"


def export(
    reference: Annotated[
        str, typer.Argument(help="A run folder, zoo:NAME, or a checkpoint (.safetensors).", metavar="MODEL")
    ],
    out: Annotated[Path | None, optional("--out", help="The folder, or file; default: in RUN/export.")] = None,
    format: Annotated[Format, typer.Option(help="A folder for timm, or a file: npz for JAX, onnx.")] = Format.TIMM,
    checkpoint: CheckpointName = None,
) -> None:
    """Write a model for timm (timm.create_model('local-dir:FOLDER', pretrained=True)), JAX (npz) or ONNX.

    Example: robustvit export runs/digits-trades
    """
    from robustvit.cli.given import timm_preprocessing
    from robustvit.core.errors import UserError
    from robustvit.core.files import is_file, is_folder
    from robustvit.core.run import RunFolder
    from robustvit.models.export import export_model, folded
    from robustvit.models.hints import ModelHints
    from robustvit.models.reference import resolve_model
    from robustvit.models.weights import load_state
    from robustvit.models.zoo import PREFIX

    path, is_zoo = Path(reference), reference.startswith(PREFIX)
    if not (is_folder(path) or is_zoo) and (path.suffix != ".safetensors" or not load_state(path)[1].get("model")):
        raise UserError(
            f"{reference}: export takes a run folder, zoo:NAME, or a checkpoint (.safetensors) that robustvit wrote"
        )
    ref = resolve_model(reference, ModelHints(checkpoint=checkpoint, command_line=True))
    above = path.parent.parent  # of RUN/checkpoints/last.safetensors
    folder = (above if is_file(RunFolder(above).recipe) else ref.folder) / "export"
    if format is not Format.TIMM and out is not None and out.suffix != f".{format}":
        raise UserError(f"--out {out}: a file that ends in .{format}")
    model = ref.module()
    if format is Format.NPZ:
        from robustvit.models.jax_weights import write_jax

        typer.echo(str(write_jax(folded(model), out or folder / "model.npz")))
        return
    if format is Format.ONNX:
        from robustvit.models.onnx import write_onnx

        size = getattr(getattr(model, "settings", None), "img_size", None) or 224
        typer.echo(str(write_onnx(folded(model), out or folder / "model.onnx", size)))
        return
    typer.echo(str(export_model(model, out or folder, timm_preprocessing(ref))))

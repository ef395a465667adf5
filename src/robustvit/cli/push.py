"""`robustvit push`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from robustvit.cli.options import CheckpointName, optional


def push(
    reference: Annotated[str, typer.Argument(metavar="RUN", help="A run folder with results, or zoo:NAME.")],
    repository: Annotated[str, typer.Argument(metavar="OWNER/NAME", help="On the Hugging Face hub.")],
    dry_run: Annotated[
        Path | None, optional("--dry-run", metavar="DIR", help="Write what would be uploaded to a folder; no network.")
    ] = None,
    license: Annotated[str | None, optional(help="Of the weights, in the hub's words, such as apache-2.0.")] = None,
    private: Annotated[bool, typer.Option("--private", help="A repository that others can't see.")] = False,
    checkpoint: CheckpointName = None,
) -> None:
    """Upload a model to the Hugging Face hub: weights, configuration, recipe and a model card with its results.

    Example: robustvit push runs/digits-trades me/digits-trades --dry-run share
    """
    from robustvit.cli.given import timm_preprocessing
    from robustvit.models.hints import ModelHints
    from robustvit.models.reference import resolve_model
    from robustvit.sharing import push as upload, write_repository

    ref = resolve_model(reference, ModelHints(checkpoint=checkpoint, command_line=True))
    options: dict[str, Any] = {"license": license, "preprocessing": timm_preprocessing(ref)}
    if dry_run is not None:
        typer.echo(str(write_repository(ref, repository, dry_run, **options)))
    else:
        typer.echo(upload(ref, repository, private=private, **options))

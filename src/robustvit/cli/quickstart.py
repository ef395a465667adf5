"""`robustvit quickstart`."""

from pathlib import Path
from typing import Annotated

import typer

SUITE = "autoattack"
IMAGES = 100
"""Enough to tell the two apart, few enough for a coffee."""
RECIPES = ("digits/standard", "digits/trades")


def quickstart(
    run: Annotated[Path, typer.Option("--run", help="Where the two runs and the report go.")] = Path("runs/quickstart"),
) -> None:
    """Train a small ViT normally and robustly, attack both, and compare them: a few minutes, no download.

    Example: robustvit quickstart
    """
    import os
    import time

    from robustvit.cli.launch import one_process
    from robustvit.cli.table import print_results
    from robustvit.core.progress import format_seconds, say
    from robustvit.evaluation import evaluate
    from robustvit.models.reference import resolve_model
    from robustvit.reporting import report
    from robustvit.training import recipe_from, train

    one_process("quickstart")
    begin = time.monotonic()
    folders, results = [], []
    for name in RECIPES:
        recipe = recipe_from(name)
        folder = train(recipe, run=run / name.rpartition("/")[2])
        ref = resolve_model(folder.path)
        result = evaluate(
            ref.module(), recipe.data, suite=SUITE, threat=recipe.threat, images=IMAGES, run=folder.path,
            processes=min(2, os.cpu_count() or 1), checkpoint=ref.checkpoint,
        )  # fmt: skip
        folders.append(folder.path)
        results.append(result)
    page = report(folders, run / "report.html")
    print_results(results)
    typer.echo(f"report: {page}")
    say(f"done in {format_seconds(time.monotonic() - begin)}")

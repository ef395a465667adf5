"""`robustvit quickstart`."""

from pathlib import Path
from typing import Annotated

import typer

PHOTOGRAPHS, MODELS = "cifar10_sample", ("zoo:vit_standard", "zoo:speedrun")
"""Attacked first, because they are there: real pictures within seconds."""
RECIPES = ("digits/standard", "digits/trades")
IMAGES = 100
"""Enough to tell models apart, few enough for a coffee."""


def quickstart(
    run: Annotated[Path, typer.Option("--run", help="Where the runs and the report go.")] = Path("runs/quickstart"),
) -> None:
    """Attack a robust model of photographs; then train a small ViT normally and robustly, attack both, and compare.

    A few minutes, no download.

    Example: robustvit quickstart
    """
    import os
    import time

    from robustvit.cli.launch import one_process
    from robustvit.cli.table import print_results
    from robustvit.core.progress import format_seconds, say
    from robustvit.evaluation import evaluate
    from robustvit.reporting import report
    from robustvit.training import train

    one_process("quickstart")
    begin, processes = time.monotonic(), min(2, os.cpu_count() or 1)
    folders, results = [], []
    for model in MODELS:
        folders.append(run / model.rpartition(":")[2])
        results.append(evaluate(model, PHOTOGRAPHS, suite="pgd-20", images=IMAGES, run=folders[-1]))
    for recipe in RECIPES:
        folders.append(train(recipe, run=run / recipe.rpartition("/")[2]).path)
        results.append(evaluate(folders[-1], suite="autoattack", images=IMAGES, run=folders[-1], processes=processes))
    page = report(folders, run / "report.html")
    print_results(results)
    typer.echo(f"report: {page}")
    say(f"done in {format_seconds(time.monotonic() - begin)}")

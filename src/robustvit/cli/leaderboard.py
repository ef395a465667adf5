"""`robustvit leaderboard`."""

from pathlib import Path
from typing import Annotated

import typer

from robustvit.cli.options import optional
from robustvit.core.progress import say


def leaderboard(
    folders: Annotated[
        list[str],
        typer.Argument(help="Run folders, folders around them, or zoo:NAME.", metavar="FOLDER..."),
    ],
    out: Annotated[Path, typer.Option("--out", help="The page.")] = Path("leaderboard.html"),
    published: Annotated[
        list[Path] | None,
        optional("--published", help="Further entries: JSON files of RobustBench, or folders such as its model_info."),
    ] = None,
    export: Annotated[
        Path | None, optional("--export", help="Also write results as JSON files of RobustBench into this folder.")
    ] = None,
) -> None:
    """Write one page that ranks the models of any number of runs, in front of RobustBench's published ones.

    Example: robustvit leaderboard runs zoo:speedrun --out leaderboard.html
    """
    from robustvit.reporting import leaderboard as write_leaderboard

    made = write_leaderboard([_folder(name) for name in folders], out, published=published or [], export=export)
    for text in made.not_exported:
        say(f"robustvit: not exported: {text}")
    for path in made.exported:
        typer.echo(str(path))
    typer.echo(str(made.page))


def _folder(name: str) -> Path:
    if not name.startswith("zoo:"):
        return Path(name)
    from robustvit.models import resolve_model
    from robustvit.models.zoo import zoo_folder, zoo_result

    source = resolve_model(name).source  # without a digest, which was compared
    zoo_result(source)  # is whole
    return zoo_folder(source)

"""Options that several sub-commands share."""

from pathlib import Path
from typing import Annotated

import typer

RunOption = Annotated[Path | None, typer.Option("--run", help="The run folder.", show_default=False)]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "-o",
        "--override",
        metavar="PATH=VALUE",
        help="Change a setting, such as threat.eps=4/255 or data.preprocess.size=224.",
        show_default=False,
    ),
]

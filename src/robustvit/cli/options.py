"""Options that several sub-commands share."""

from pathlib import Path
from typing import Annotated

import typer

from robustvit.core.errors import UserError

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

What = Annotated[
    str,
    typer.Argument(
        help="A run folder, a checkpoint (.safetensors, .pt), a timm model's name, hf_hub:OWNER/NAME, or "
        "module:function (file.py:function) that returns an nn.Module on pixels in [0, 1]."
    ),
]
Data = Annotated[
    str | None,
    typer.Option(
        help="A name, a folder, an .npz or .npy file, shards 'x-*.tar'; default: the run's.", show_default=False
    ),
]
SplitName = Annotated[str, typer.Option(help="train or test.")]
NormName = Annotated[str | None, typer.Option(help="inf, 2 or 1; default: the run's, else inf.", show_default=False)]
ImageCount = Annotated[int | None, typer.Option(help="A seeded random subset of so many.", show_default=False)]
BatchSize = Annotated[int, typer.Option()]
Seed = Annotated[int, typer.Option()]
Device = Annotated[str, typer.Option()]
CheckpointName = Annotated[
    str | None, typer.Option(help="Of a run: best, last or an epoch's; default: its rule.", show_default=False)
]
ModelName = Annotated[
    str | None, typer.Option(help="The timm model that a bare checkpoint belongs to.", show_default=False)
]
NumClasses = Annotated[int | None, typer.Option(show_default=False)]
ImageSize = Annotated[int | None, typer.Option(show_default=False)]
Mean = Annotated[str | None, typer.Option(help="Such as 0.49,0.48,0.45.", show_default=False)]
Std = Annotated[str | None, typer.Option(show_default=False)]
WeightsKey = Annotated[
    str | None,
    typer.Option(help="The entry of a checkpoint that holds the weights, if several do.", show_default=False),
]
RandomWeights = Annotated[bool, typer.Option("--random-weights", help="A timm model without its weights.")]


def parse_numbers(text: str | None, option: str) -> tuple[float, ...] | None:
    if text is None:
        return None
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise UserError(f"{option} {text}: numbers with commas between, such as 0.49,0.48,0.45") from None

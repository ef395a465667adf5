"""Options that several sub-commands share, each written once."""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from robustvit.core.errors import UserError

if TYPE_CHECKING:
    from robustvit.models.reference import ModelHints

ModelArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A run folder, a checkpoint (.safetensors, .pt), a timm model's name, hf_hub:OWNER/NAME, or "
        "module:function (file.py:function) that returns an nn.Module on pixels in [0, 1].",
    ),
]
CheckpointName = Annotated[
    str | None, typer.Option(help="Of a run: best, last or an epoch's; default: its rule.", show_default=False)
]
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
ImageCount = Annotated[int | None, typer.Option(help="A seeded random subset of so many.", show_default=False)]


@dataclass(frozen=True)
class ModelOptions:
    """What is said about a model and the images it is judged on."""

    data: Annotated[
        str | None,
        typer.Option(
            help="A name, a folder, an .npz or .npy file, shards 'x-*.tar'; default: the run's.", show_default=False
        ),
    ] = None
    split: Annotated[str, typer.Option(help="train or test.")] = "test"
    batch_size: Annotated[int, typer.Option()] = 128
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps ...")] = "auto"
    checkpoint: CheckpointName = None
    num_classes: Annotated[int | None, typer.Option(show_default=False)] = None
    img_size: Annotated[int | None, typer.Option(show_default=False)] = None
    mean: Annotated[str | None, typer.Option(help="Such as 0.49,0.48,0.45.", show_default=False)] = None
    std: Annotated[str | None, typer.Option(show_default=False)] = None
    weights_key: Annotated[
        str | None,
        typer.Option(help="The entry of a checkpoint that holds the weights, if several do.", show_default=False),
    ] = None
    random_weights: Annotated[bool, typer.Option("--random-weights", help="A timm model without its weights.")] = False

    def hints(self, **more: Any) -> "ModelHints":
        from robustvit.models.reference import ModelHints

        same = ("checkpoint", "num_classes", "img_size", "weights_key", "random_weights")
        mean, std = _numbers(self.mean, "--mean"), _numbers(self.std, "--std")
        known = {name: getattr(self, name) for name in same}
        return ModelHints(**known, mean=mean, std=std, command_line=True, **more)


@dataclass(frozen=True)
class ThreatOptions(ModelOptions):
    """Also what may be done to the images, and where results go."""

    norm: Annotated[str | None, typer.Option(help="inf, 2 or 1; default: the run's, else inf.", show_default=False)] = (
        None
    )
    seed: Annotated[int, typer.Option()] = 0
    run: RunOption = None
    override: Overrides = None
    model: Annotated[
        str | None, typer.Option(help="The timm model that a bare checkpoint belongs to.", show_default=False)
    ] = None


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """The fields of the parameter `options`, a dataclass, become options of the command."""
    signature = inspect.signature(command)
    kind = signature.parameters["options"].annotation
    fields = {
        field.name: inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=field.type
        )
        for field in dataclasses.fields(kind)
    }

    @functools.wraps(command)
    def call(**values: Any) -> None:
        given = {name: values.pop(name) for name in fields}
        command(options=kind(**given), **values)

    own = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in signature.parameters.values()]
    shown = [parameter for parameter in own if parameter.name != "options"] + list(fields.values())
    call.__signature__ = signature.replace(parameters=shown)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in shown}
    return call


def _numbers(text: str | None, option: str) -> tuple[float, ...] | None:
    if text is None:
        return None
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise UserError(f"{option} {text}: numbers with commas between, such as 0.49,0.48,0.45") from None

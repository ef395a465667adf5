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
    from robustvit.models.hints import ModelHints

optional: Any = functools.partial(typer.Option, show_default=False)
"""An option whose default is to leave it out."""

_MODEL_FORMS = (
    "A run folder, a checkpoint (.safetensors, .pt, .npz), an .onnx file, zoo:NAME, a timm model's name, "
    "hf_hub:OWNER/NAME (timm, transformers or robustvit), or module:function (file.py:function) that returns an "
    "nn.Module on pixels in [0, 1]."
)
_CHANGE = "Change a setting, such as threat.eps=4/255 or data.preprocess.size=224."

ModelArgument = Annotated[str, typer.Argument(metavar="MODEL", help=_MODEL_FORMS)]
ModelsArgument = Annotated[
    list[str], typer.Argument(metavar="MODEL...", help=f"{_MODEL_FORMS} Or the card.json of a card.")
]
RecipeArgument = Annotated[str, typer.Argument(help="A recipe that ships with robustvit, or a YAML file.")]
CheckpointName = Annotated[str | None, optional(help="Of a run: best, last or an epoch's; default: its rule.")]
RunOption = Annotated[Path | None, optional("--run", help="The run folder.")]
Overrides = Annotated[list[str] | None, optional("-o", "--override", metavar="PATH=VALUE", help=_CHANGE)]
HeadName = Annotated[str | None, optional("--head", help="Of a model with several, such as acc, rob or joint.")]
ImageCount = Annotated[int | None, optional(help="A seeded random subset of so many.")]


@dataclass(frozen=True)
class ModelOptions:
    """A model and the images it is judged on."""

    data: Annotated[
        str | None, optional(help="A name, a folder, an .npz or .npy file, shards 'x-*.tar'; default: the run's.")
    ] = None
    split: Annotated[str, typer.Option(help="train or test.")] = "test"
    batch_size: Annotated[int | None, optional(help="Images at once; default: as memory allows.")] = None
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps ...")] = "auto"
    checkpoint: CheckpointName = None
    model: Annotated[str | None, optional(help="The timm model that a bare checkpoint belongs to.")] = None
    num_classes: Annotated[int | None, optional()] = None
    img_size: Annotated[int | None, optional()] = None
    mean: Annotated[str | None, optional(help="Such as 0.49,0.48,0.45.")] = None
    std: Annotated[str | None, optional()] = None
    weights_key: Annotated[str | None, optional(help="A checkpoint's entry with the weights, if several have.")] = None
    random_weights: Annotated[bool, typer.Option("--random-weights", help="A timm model without its weights.")] = False

    def hints(self, **more: Any) -> "ModelHints":
        from robustvit.models.hints import ModelHints

        same = ("checkpoint", "num_classes", "img_size", "weights_key", "random_weights")
        more |= {name: getattr(self, name) for name in same}
        given = {name: getattr(self, name) for name in ("mean", "std")}
        more |= {name: numbers(text, f"--{name}") for name, text in given.items() if text is not None}
        return ModelHints(**more, command_line=True)


@dataclass(frozen=True)
class ThreatOptions(ModelOptions):
    """Also the threat, and where results go."""

    norm: Annotated[str | None, optional(help="inf, 2 or 1; default: the run's, else inf.")] = None
    seed: Annotated[int, typer.Option()] = 0
    run: RunOption = None
    override: Overrides = None

    def has_threat(self, eps: str | None) -> bool:
        """Whether the command line says which changes are allowed."""
        changed = any(change.startswith("threat.") for change in self.override or [])
        return eps is not None or self.norm is not None or changed


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """The fields of the parameter `options`, a dataclass, become options of the command."""
    signature = inspect.signature(command)
    kind = signature.parameters["options"].annotation
    fields = dataclasses.fields(kind)
    keyword = inspect.Parameter.KEYWORD_ONLY

    @functools.wraps(command)
    def call(**values: Any) -> None:
        command(options=kind(**{field.name: values.pop(field.name) for field in fields}), **values)

    shown = [parameter.replace(kind=keyword) for name, parameter in signature.parameters.items() if name != "options"]
    shown += [inspect.Parameter(one.name, keyword, default=one.default, annotation=one.type) for one in fields]
    call.__signature__ = signature.replace(parameters=shown)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in shown}
    return call


def numbers(text: str, option: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise UserError(f"{option} {text}: numbers with commas between, such as 0.49,0.48,0.45") from None

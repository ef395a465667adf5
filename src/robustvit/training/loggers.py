"""Where the rows of metrics.jsonl also go while a run trains; the packages are imported when a recipe names them."""

import importlib
import secrets
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Annotated, Any, Literal, Protocol

from pydantic import BeforeValidator

from robustvit.core.component import OneOf, component
from robustvit.core.config import Tree
from robustvit.core.errors import UserError, first_line
from robustvit.core.files import write_text
from robustvit.core.journal import Row
from robustvit.core.progress import say
from robustvit.core.readers import read_text
from robustvit.core.run import RunFolder

PLACE = ("total_step", "step", "images")
"""Numbers of a row that are its position, not measurements."""


Write = Callable[[int, dict[str, float]], None]
"""Takes the numbers of a step, by name."""


class Logger(Protocol):
    """`open` begins at step 0, or continues after the step that a resumed run starts from."""

    def open(self, folder: RunFolder, recipe: Tree, step: int) -> AbstractContextManager[Write]: ...


AnyLogger = Annotated[Logger, OneOf("logger")]
AnyLoggers = Annotated[
    tuple[AnyLogger, ...], BeforeValidator(lambda value: value if isinstance(value, list | tuple) else [value])
]
"""A list of loggers, or one."""


def values_of(row: Row) -> dict[str, float]:
    """`{"kind": "train", "loss": 0.5, ...}` as `{"train/loss": 0.5, ...}`; warnings and what isn't finite stay out."""
    if row["kind"] == "warning":
        return {}
    name = row["name"] if row["kind"] == "event" else row["kind"]
    numbers = {**row, **row.get("values", {})}.items()
    return {f"{name}/{key}": value for key, value in numbers if isinstance(value, int | float) and key not in PLACE}


@component("logger", "tensorboard")
class TensorBoard:
    """Event files in the run folder: tensorboard --logdir runs."""

    @contextmanager
    def open(self, folder: RunFolder, recipe: Tree, step: int) -> Iterator[Write]:
        _import_package("tensorboard")
        from torch.utils.tensorboard import SummaryWriter

        def write(step: int, values: dict[str, float]) -> None:
            for name, value in values.items():
                writer.add_scalar(name, value, step)
            writer.flush()

        # what a killed run wrote after its last saved state will be written again
        purge = step + 1 if step else None
        with SummaryWriter(str(folder.path / "tensorboard"), purge_step=purge) as writer:
            yield write


@component("logger", "wandb")
class WeightsAndBiases:
    """A run at Weights & Biases; a resumed training continues the same one."""

    project: str = "robustvit"
    """Name of the project there."""
    entity: str | None = None
    """A user or team; None: your own."""
    mode: Literal["online", "offline"] | None = None
    """offline: files in the run folder, to be sent by `wandb sync`; None: as WANDB_MODE says, else online."""

    @contextmanager
    def open(self, folder: RunFolder, recipe: Tree, step: int) -> Iterator[Write]:
        wandb = _import_package("wandb")
        run_id = folder.path / "wandb" / "id"  # chosen once
        if not run_id.exists():
            write_text(run_id, secrets.token_hex(4))
        try:
            run = wandb.init(
                project=self.project,
                entity=self.entity,
                mode=self.mode,
                name=folder.path.resolve().name,
                id=read_text(run_id).strip(),
                resume="allow",
                dir=str(folder.path),
                config=recipe,
                settings=wandb.Settings(silent=True, console="off"),
            )
        except wandb.Error as error:
            problem, advice = first_line(error).rstrip("."), "run `wandb login` first, or set its mode to offline"
            raise UserError(f"recipe.loggers: wandb can't begin ({problem}); {advice}") from None
        say(f"wandb: to send this run, wandb sync {run.settings.sync_dir}" if run.offline else f"wandb: {run.url}")
        try:
            yield lambda step, values: run.log(values, step=step)
        finally:
            run.finish()


def _import_package(package: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError:
        advice = f"pip install 'robustvit[{package}]', or leave the logger out"
        raise UserError(f"recipe.loggers: {package} is not installed; {advice}") from None

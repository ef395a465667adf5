"""A recipe in, a run folder out; killed at any moment, the same call goes on to the same weights."""

import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from shutil import rmtree
from typing import Any

import yaml

from robustvit.core.config import read_yaml
from robustvit.core.errors import UserError
from robustvit.core.files import is_file, locked, write_text
from robustvit.core.progress import say
from robustvit.core.run import RunFolder
from robustvit.training.loggers import opened
from robustvit.training.recipe import Recipe, differences, recipe_from
from robustvit.training.trainer import Stop, Trainer


def train(
    recipe: Recipe | str | Path | Mapping[str, Any],
    run: str | Path | None = None,
    overrides: Sequence[str] = (),
    quiet: bool = False,
    max_steps: int | None = None,
) -> RunFolder:
    """Train a recipe in a run folder (default: runs/NAME); a finished run is left as it is.

    `max_steps` stops early, with a checkpoint, as Ctrl-C would: the same call without it goes on.
    """
    checked = recipe_from(recipe, overrides)
    folder = RunFolder(Path(run) if run is not None else Path("runs") / checked.name)
    if folder.path.exists() and not folder.path.is_dir():
        raise UserError(f"{folder.path}: a file, not a run folder")
    is_new = not folder.path.exists()
    with locked(folder.lock("train"), "training"), _stopping_gently() as stop:
        _refuse_another_recipe(folder, checked)
        try:
            trainer = Trainer(checked, folder, quiet)
        except UserError:
            if is_new and list(folder.path.iterdir()) == [folder.lock("train")]:
                rmtree(folder.path)  # a recipe that can't begin leaves nothing behind
            raise
        if trainer.finished:
            if not quiet:
                say(f"{folder.path}: already trained; nothing to do")
            return folder
        write_text(folder.recipe, yaml.safe_dump(checked.to_dict(), sort_keys=False))
        folder.write_environment()
        with opened(checked.loggers, folder, checked.to_dict(), trainer.total_step) as trainer.sinks:
            trainer.run(stop, max_steps)
    return folder


def _refuse_another_recipe(folder: RunFolder, recipe: Recipe) -> None:
    begun = any(folder.checkpoints.glob("*")) or is_file(folder.metrics.path)
    if folder.recipe.exists() and begun:
        found = differences(read_yaml(folder.recipe), recipe.to_dict())
        if found:
            raise UserError(
                f"{folder.path}: made by another recipe; choose another --run folder\n" + "\n".join(found[:8])
            )
    elif any(folder.checkpoints.glob("*")) and not folder.recipe.exists():
        raise UserError(f"{folder.path}: holds checkpoints but no recipe.yaml; choose another --run folder")


@contextmanager
def _stopping_gently() -> Iterator[Stop]:
    stop = Stop()

    def note(number: int, frame: object) -> None:
        if stop.signal is not None:
            raise KeyboardInterrupt  # the second time at once
        stop.signal = number

    try:
        before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not in the main thread: the caller's business
        before = {}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

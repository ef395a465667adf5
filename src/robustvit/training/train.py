"""A recipe in, a run folder out; killed at any moment, the same call resumes and ends with the same weights."""

import signal
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from shutil import rmtree
from typing import Any

import yaml

from robustvit.core.config import read_yaml
from robustvit.core.errors import UserError, check_counts
from robustvit.core.files import hash8, is_file, locked, write_text
from robustvit.core.processes import run_processes
from robustvit.core.run import RunFolder, cpu_seconds, versions
from robustvit.core.world import World, own_device, resolve_device
from robustvit.evaluation.store import require_shared
from robustvit.models import fingerprint
from robustvit.models.precision import matrix_products
from robustvit.training.base_recipe import BaseRecipe, any_recipe, differences
from robustvit.training.loop import Loop, Stop
from robustvit.training.recipe import Recipe
from robustvit.training.recorder import AnyRecorder, NullRecorder, Recorder, state_paths

ONE_KEYSTROKE = 1.0
"""Seconds in which a second signal is the first one again: a launcher passes on what a terminal has sent to all."""


def train(
    recipe: BaseRecipe | str | Path | Mapping[str, Any],
    run: str | Path | None = None,
    overrides: Sequence[str] = (),
    quiet: bool = False,
    max_steps: int | None = None,
    world: World | None = None,
    processes: int = 1,
) -> RunFolder:
    """Train a recipe in a run folder (default: runs/NAME); a finished run is left as it is.

    `max_steps` stops early, with a checkpoint, as Ctrl-C would: the same call without it resumes. `processes` of one
    thread each compute the parts of a batch; `world` is this process's place where a launcher has started several. Of
    these only the first one writes.
    """
    began = cpu_seconds()
    check_counts(processes=processes)
    checked = any_recipe(recipe, overrides)
    if processes > 1:
        folder = RunFolder(Path(run) if run is not None else Path("runs") / checked.name)
        work = {"recipe": checked, "run": folder.path, "quiet": quiet, "max_steps": max_steps}
        own_device(checked.device, processes - 1)  # the others would wait for one that has none
        run_processes(processes, _train_one, work, folder.path, connected=True)
        return folder
    world = world or World(device=resolve_device(checked.device))
    folder = RunFolder(Path(run) if run is not None else Path("runs") / checked.name)
    checked = checked.resolved(world.device, read_yaml(folder.recipe) if is_file(folder.recipe) else None)
    if folder.path.exists() and not folder.path.is_dir():
        raise UserError(f"{folder.path}: a file, not a run folder")
    is_new = not folder.path.exists()
    recorder = Recorder(folder, checked.to_dict(), quiet) if world.is_first else NullRecorder()
    world.barrier()  # connects them; whoever stays alone leaves no folder behind
    with ExitStack() as stack, _catching_signals() as stop, world.together():
        world.first(lambda: stack.enter_context(locked(folder.lock("train"), "training")))
        try:
            loop = _opened(checked, folder, recorder, world, began)
        except UserError:
            if is_new and world.is_first and list(folder.path.iterdir()) == [folder.lock("train")]:
                rmtree(folder.path)  # a recipe that can't begin leaves nothing behind
            raise
        if loop.finished:
            recorder.message("already trained; nothing to do")
            return folder
        if world.is_first:
            write_text(folder.recipe, yaml.safe_dump(checked.to_dict(), sort_keys=False))
            folder.write_environment()
            if checked.info.group and not folder.group.exists():
                folder.write_group(checked.info.group)
        precision = checked.precision if isinstance(checked, Recipe) else "float32"
        with recorder.opened(checked.loggers, loop.position.total_step), matrix_products(precision):
            loop.run(stop, max_steps)
    return folder


def _train_one(*, world: World, recipe: BaseRecipe, **settings: Any) -> None:
    """One of several processes of this machine; each has a GPU of its own where there are any."""
    train(recipe, **settings, world=replace(world, device=own_device(recipe.device, world.rank)))


def _opened(recipe: BaseRecipe, folder: RunFolder, recorder: AnyRecorder, world: World, began: float) -> Loop:
    """The loop of a run that may begin or go on here."""
    _refuse_states_elsewhere(folder, world)
    if isinstance(recipe, Recipe) and recipe.shard:
        require_shared(folder.path, world, "with shard: true every process writes a part of the state")
    world.first(lambda: _refuse_another_recipe(folder, recipe))
    return _begin(recipe, recorder, world, began)


def _begin(recipe: BaseRecipe, recorder: AnyRecorder, world: World, began: float) -> Loop:
    """The loop at its position; several processes must have the same recipe, versions, data and weights."""
    if world.size == 1:
        return Loop(recipe, recipe.task.build(recipe, recorder, world), recorder, world, began)
    _agree(world, recipe.to_dict(), "recipe")
    _agree(world, versions(), "versions")
    task = recipe.task.build(recipe, recorder, world)
    world.agree(hash8(task.fingerprint()), "training data")
    loop = Loop(recipe, task, recorder, world, began)
    world.agree(fingerprint(task.weights())[:16], "weights to begin with")
    return loop


def _agree(world: World, settings: Mapping[str, Any], what: str) -> None:
    """Raise in every process where settings differ, and name them."""
    (first, host), *others = world.gather((settings, socket.gethostname()))
    for rank, (other, place) in enumerate(others, start=1):
        if lines := differences(first, other, what):
            where = f"process 0 ({host}, there) and process {rank} ({place}, here)"
            raise UserError("\n".join([f"{what}: {where} must have the same, but differ in", *lines[:8]]))


def _refuse_another_recipe(folder: RunFolder, recipe: BaseRecipe) -> None:
    has_checkpoints = any(folder.checkpoints.glob("*"))
    if not folder.recipe.exists() and has_checkpoints:
        raise UserError(f"{folder.path}: holds checkpoints but no recipe.yaml; choose another run folder")
    if folder.recipe.exists() and (has_checkpoints or is_file(folder.metrics.path)):
        lines = differences(read_yaml(folder.recipe), recipe.to_dict())[:8]
        if lines:
            problem = f"{folder.path}: made by another recipe; choose another run folder"
            raise UserError("\n".join([problem, *lines]))


def _refuse_states_elsewhere(folder: RunFolder, world: World) -> None:
    """Only the first process reads states: it must not begin anew where it is another machine than before."""
    newest = next((path.name for path in state_paths(folder)), "")
    (own, host), *others = world.gather((newest, socket.gethostname()))
    for state, place in others:
        if state > own:
            problem = f"{folder.path}: {place} holds {state}, which {host}, the machine of the first process, doesn't"
            raise UserError(f"{problem}; use a folder that all machines share, or copy it to {host}")


@contextmanager
def _catching_signals() -> Iterator[Stop]:
    stop, first = Stop(), 0.0

    def note(number: int, frame: object) -> None:
        nonlocal first
        if stop.signal is None:
            stop.signal, first = number, time.monotonic()
        elif time.monotonic() - first > ONE_KEYSTROKE:
            raise KeyboardInterrupt  # the second time at once

    try:
        before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not in the main thread: the caller's business
        before = {}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

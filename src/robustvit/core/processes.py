"""Fresh processes on this machine that do a work together."""

import multiprocessing
import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch

from robustvit.core.errors import UserError, first_line
from robustvit.core.progress import Progress
from robustvit.core.world import World, is_disconnected

Work = Callable[..., None]
END_SECONDS = 10.0
"""That a process has to end by itself when it is asked to."""


def run_processes(count: int, work: Work, arguments: dict[str, Any], folder: Path, connected: bool = False) -> None:
    """Call `work(world=..., **arguments)` in `count` fresh processes of one thread each; all end before this returns.

    Fresh rather than forked, because a fork of a process whose OpenMP threads have run can hang. `connected`: they may
    use the collectives of their world, and a signal lets them end by themselves.
    """
    with tempfile.TemporaryDirectory() as place:
        worlds = [World(rank, count, init_method=f"file://{place}/store") for rank in range(count)]
        _run(worlds if connected else [World(rank, count) for rank in range(count)], work, arguments, folder, connected)


def _run(worlds: Sequence[World], work: Work, arguments: dict[str, Any], folder: Path, connected: bool) -> None:
    context, count = torch.multiprocessing.get_context("spawn"), len(worlds)
    mistakes = context.SimpleQueue()
    processes = [
        context.Process(target=_work, args=(work, world, arguments, mistakes, Progress.outer), daemon=False)
        for world in worlds
    ]  # no daemons: those may not start the workers that read data
    received: list[int] = []
    try:
        _start(processes)
        with forwarding_signals(processes, received) if connected else nullcontext():
            for process in processes:
                process.join()
    finally:
        _end(processes)
    if received and any(process.exitcode for process in processes):
        raise KeyboardInterrupt(received[0])
    if not mistakes.empty():
        raise UserError(mistakes.get())
    broken = [process.exitcode for process in processes if process.exitcode]
    if broken:
        raise UserError(
            f"{folder}: {len(broken)} of {count} processes ended early (code {broken[0]}); what they did is kept, and "
            "the same command resumes (a script of your own must call it below if __name__ == '__main__':)"
        )


def _start(processes: Sequence[Any]) -> None:
    try:
        for process in processes:
            process.start()
    except (AttributeError, TypeError, RuntimeError) as error:
        if not isinstance(error, RuntimeError) and "pickle" not in str(error):
            raise
        raise UserError(
            f"several processes need a model that can be pickled ({first_line(error)}); use processes=1"
        ) from None


def _end(processes: Sequence[Any]) -> None:
    """Those that still run when this one was interrupted."""
    running = [process for process in processes if process.pid is not None and process.is_alive()]
    for process in running:
        process.terminate()
    for process in running:
        process.join(END_SECONDS)
        process.kill()
        process.join()


def _work(work: Work, world: World, arguments: dict[str, Any], mistakes: Any, outer: str) -> None:
    torch.set_num_threads(1)
    Progress.outer = outer
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    try:
        work(world=world, **arguments)
    except UserError as error:
        mistakes.put(str(error))
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except RuntimeError as error:
        if world.size == 1 or not is_disconnected(error):
            raise
        raise SystemExit(1) from None  # another process has ended, and has said why


@contextmanager
def forwarding_signals(processes: Sequence[Any], received: list[int]) -> Iterator[None]:
    """Signals go on to the processes, which end by themselves; the numbers of those received are noted.

    As SIGTERM, which also ends one that is still importing. Ctrl-C of a terminal has reached them before, so that they
    get two signals of one keystroke.
    """

    def forward(number: int, frame: object) -> None:
        received.append(number)
        for process in processes:
            if process.is_alive():
                process.terminate()

    try:
        before = {number: signal.signal(number, forward) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not in the main thread
        before = {}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end_with_the_parent() -> None:
    """An orphan would write next to the processes of the same command started again."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)

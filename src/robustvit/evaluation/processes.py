"""One evaluation by several processes on this machine: each takes a shard of the images and keeps its own ledger."""

import multiprocessing
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from robustvit.core.errors import UserError, first_line
from robustvit.core.world import World

Work = Callable[..., None]


def run_processes(count: int, work: Work, arguments: dict[str, Any], folder: Path) -> None:
    """Call `work(world=..., **arguments)` in `count` fresh processes of one thread each; all end before this returns.

    Fresh rather than forked, because a fork of a process whose OpenMP threads have run can hang.
    """
    context = torch.multiprocessing.get_context("spawn")
    mistakes = context.SimpleQueue()
    processes = [
        context.Process(target=_work, args=(work, World(rank, count), arguments, mistakes), daemon=True)
        for rank in range(count)
    ]
    try:
        for process in processes:
            process.start()
    except (AttributeError, TypeError, RuntimeError) as error:
        if not isinstance(error, RuntimeError) and "pickle" not in str(error):
            raise
        raise UserError(
            f"several processes need a model that can be pickled ({first_line(error)}); use processes=1"
        ) from None
    for process in processes:
        process.join()
    if not mistakes.empty():
        raise UserError(mistakes.get())
    broken = [process.exitcode for process in processes if process.exitcode]
    if broken:
        raise UserError(
            f"{folder}: {len(broken)} of {count} processes ended early (code {broken[0]}); what they did is kept, and "
            "the same command resumes (a script of your own must call it below if __name__ == '__main__':)"
        )


def _work(work: Work, world: World, arguments: dict[str, Any], mistakes: Any) -> None:
    torch.set_num_threads(1)
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    try:
        work(world=world, **arguments)
    except UserError as error:
        mistakes.put(str(error))
    except KeyboardInterrupt:
        raise SystemExit(130) from None


def _end_with_the_parent() -> None:
    """An orphan would write next to the processes of the same command started again."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)

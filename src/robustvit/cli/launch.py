"""The world that a launcher such as torchrun describes in the environment."""

import os
import re
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING

from robustvit.core.errors import UserError
from robustvit.core.files import hash8
from robustvit.core.progress import say

if TYPE_CHECKING:
    from robustvit.core.world import World


TIMEOUT = "ROBUSTVIT_TIMEOUT"
STEP_SECONDS = 1800
"""How long the processes of a training wait for each other, who meet at every step."""
STORE_SECONDS = 5
"""How long a process that ends tries to reach torchrun's store."""


def launched_world(device: str = "auto", seconds: float | None = None) -> "World":
    """One process, or the one of several that RANK, WORLD_SIZE and LOCAL_RANK name; `cuda` is each process's own.

    Processes wait for each other for so many `seconds`, or as many as ROBUSTVIT_TIMEOUT says; None: for a month.
    """
    from robustvit.core.world import COLLECTIVE_TIMEOUT, World, own_device, resolve_device

    if "RANK" not in os.environ and "WORLD_SIZE" not in os.environ:
        tasks = os.environ.get("SLURM_NTASKS", "1")
        if os.environ.get("SLURM_PROCID") and tasks.isdecimal() and int(tasks) > 1:
            advice = "start one torchrun on each node (srun --ntasks-per-node=1 torchrun ...), see docs/processes.md"
            raise UserError(f"SLURM_NTASKS={tasks} without torchrun: every task would do the whole work; {advice}")
        return World(device=resolve_device(device))
    rank, size = _number("RANK"), _number("WORLD_SIZE")
    local_rank = _number("LOCAL_RANK") if "LOCAL_RANK" in os.environ else 0
    if not 0 <= rank < size:
        raise UserError(f"RANK={rank} and WORLD_SIZE={size} in the environment: a rank is 0 to WORLD_SIZE - 1")
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]
    if size > 1 and missing:
        advice = "start the processes with torchrun, or unset WORLD_SIZE and RANK"
        raise UserError(f"WORLD_SIZE={size} in the environment, but not {' and '.join(missing)}: {advice}")
    threading.Thread(target=_end_with_the_launcher, args=(os.getppid(),), daemon=True).start()
    seconds = _number(TIMEOUT) if TIMEOUT in os.environ else seconds
    if seconds == 0:
        raise UserError(f"{TIMEOUT}=0 in the environment: seconds that processes wait for each other, such as 1800")
    timeout = COLLECTIVE_TIMEOUT if seconds is None else timedelta(seconds=seconds)
    return World(rank, size, own_device(device, local_rank), timeout=timeout)


def say_once(text: str) -> None:
    """Of the processes of a torchrun, the first one that has to say this does so."""
    if not _was_said(text):
        say(text)


def _was_said(text: str) -> bool:
    """Whether another process has said it; not known without the store that torchrun has for them."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return False
    from torch._C._distributed_c10d import TCPStore

    attempt, sentence = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), re.sub(r"process \d+ \([^)]*\): ", "", text)
    try:
        port = _number("MASTER_PORT")
        store = TCPStore(os.environ["MASTER_ADDR"], port, is_master=False, timeout=timedelta(seconds=STORE_SECONDS))
        return store.add(f"robustvit/said/{attempt}/{hash8(sentence)}", 1) > 1
    except (RuntimeError, ValueError, KeyError):
        return False


def _end_with_the_launcher(parent: int) -> None:
    """A killed torchrun leaves its processes running: they would write next to those of the same command."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def one_process(command: str, device: str = "auto") -> "World":
    """The world of a command that does not run in several processes."""
    world = launched_world(device)
    if world.size > 1:
        raise UserError(f"{command}: runs in one process so far; start it without a launcher")
    return world


def _number(name: str) -> int:
    text = os.environ.get(name)
    if text is None or not text.isdecimal():
        shown = "isn't set" if text is None else f"is {text!r}"
        advice = (
            "give whole seconds" if name == TIMEOUT else "where a launcher sets a number; unset RANK and WORLD_SIZE"
        )
        raise UserError(f"{name} {shown} in the environment, {advice}")
    return int(text)

"""Trainings whose processes are killed, stopped, lost and joined: they end with the weights of the unbroken one.

Laws 3 (kills), 7 (signals) and 8 (a killed launcher). All of it takes minutes: `make slow AREA=elastic`.
"""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml

from hosts import Host, two_hosts
from robustvit.training import train
from test_processes import settings, written

pytestmark = pytest.mark.slow
RECIPE = ["-o", "accumulate=4", "-o", "checkpoints.seconds=0.2"]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def unbroken(folder: Path, epochs: int) -> dict[str, bytes]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    train("digits/trades", folder / "whole", [*RECIPE[1::2], f"epochs={epochs}"], quiet=True)
    torch.set_num_threads(threads)
    return written(folder / "whole")


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    return unbroken(tmp_path_factory.mktemp("elastic"), 2)


def training(run: Path, epochs: int = 2) -> list[str]:
    return ["train", "digits/trades", *RECIPE, "-o", f"epochs={epochs}", "--run", str(run)]


def torchrun(*command: str, processes: int = 2, restarts: int = 9, options: tuple[str, ...] = ()) -> list[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(processes)]
    return [*launcher, "--max-restarts", str(restarts), *options, "-m", "--", "robustvit", *command]


def started(command: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, env=ENVIRONMENT)


def workers(process: subprocess.Popen[bytes]) -> list[int]:
    """Living processes that this one has started."""
    found = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return [int(child) for child in found if Path(f"/proc/{child}").exists()]


def wait_for(condition, *processes: subprocess.Popen[bytes]) -> None:
    while not condition():
        assert all(process.poll() is None for process in processes)
        time.sleep(0.05)


def states(run: Path) -> set[str]:
    return {path.name for path in (run / "checkpoints").glob("state-*.pt")}


def wait_for_state(run: Path, *processes: subprocess.Popen[bytes]) -> None:
    """One that is newer than now."""
    before = states(run)
    wait_for(lambda: states(run) - before, *processes)


def wait_for_end(pids: list[int], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < deadline, "a process is left"
        time.sleep(0.1)


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_process_is_started_again(tmp_path, expected, victim):
    """Law 3: SIGKILL of any rank under torchrun ends with the bytes of the unbroken run."""
    process = started(torchrun(*training(tmp_path / "run")))
    wait_for_state(tmp_path / "run", process)
    os.kill(workers(process)[victim], signal.SIGKILL)
    assert process.wait() == 0
    assert written(tmp_path / "run") == expected


def use_up_restarts(process: subprocess.Popen[bytes], run: Path, restarts: int, chance: random.Random) -> None:
    """Kill a random process of each attempt at a random moment after its first state."""
    attempt: list[int] = []
    for _ in range(restarts + 1):
        wait_for(lambda: workers(process) and not set(attempt) & set(workers(process)), process)
        wait_for_state(run, process)
        time.sleep(chance.random())
        attempt[:] = workers(process)
        os.kill(chance.choice(attempt), signal.SIGKILL)
    assert process.wait() != 0


def test_twenty_kills_at_random(tmp_path):
    """Law 3, with another number of processes each time they are launched."""
    expected, chance, run = unbroken(tmp_path, 16), random.Random(0), tmp_path / "run"
    for _ in range(4):
        command = torchrun(*training(run, 16), processes=chance.choice([1, 2, 4]), restarts=4)
        use_up_restarts(started(command), run, 4, chance)
    assert started(torchrun(*training(run, 16))).wait() == 0
    assert written(run) == expected


def test_a_killed_launcher_leaves_no_process(tmp_path):
    """Law 8: 10 seconds after SIGKILL of torchrun, none of its processes is left."""
    process = started(torchrun(*training(tmp_path / "run")))
    wait_for_state(tmp_path / "run", process)
    left = workers(process)
    process.kill()
    process.wait()
    wait_for_end(left)


@pytest.mark.parametrize(
    ("number", "of", "then"),
    [(signal.SIGTERM, "launcher", 4), (signal.SIGINT, "launcher", 2), (signal.SIGTERM, "one", 1)],
)
def test_a_signal_stops_all_at_one_step_and_another_number_resumes(tmp_path, expected, number, of, then):
    """Law 7: a signal to one process or to the launcher stops all at one step, with its state on disk."""
    run = tmp_path / "run"
    process = started(torchrun(*training(run), restarts=0))
    wait_for_state(run, process)
    os.kill(process.pid if of == "launcher" else workers(process)[1], number)
    assert process.wait() != 0, "it ends before the training does"
    assert started(torchrun(*training(run), processes=then)).wait() == 0
    assert written(run) == expected


@pytest.mark.parametrize(
    ("number", "of"), [(signal.SIGTERM, "parent"), (signal.SIGINT, "parent"), (signal.SIGINT, "group")]
)
def test_processes_of_one_command_stop_together(tmp_path, expected, number, of):
    """Law 7 without torchrun."""
    run = tmp_path / "run"
    command = [sys.executable, "-m", "robustvit", *training(run), "--processes", "2"]
    process = subprocess.Popen(command, env=ENVIRONMENT, start_new_session=True)
    wait_for_state(run, process)
    if of == "group":
        os.killpg(process.pid, number)  # as Ctrl-C of a terminal
    else:
        process.send_signal(number)
    assert process.wait() == 128 + number
    torch.set_num_threads(1)
    train("digits/trades", run, [*RECIPE[1::2], "epochs=2"], quiet=True)
    assert written(run) == expected


def test_the_slurm_script_of_the_docs(tmp_path):
    """With one node and programs that stand in for Slurm's."""
    text = (Path(__file__).parents[1] / "docs/processes.md").read_text()
    script = text[text.index("#!/bin/bash") :].partition("```")[0]
    commands = {
        "srun": 'exec "$@"',
        "scontrol": "echo localhost",
        "torchrun": f'exec {sys.executable} -m torch.distributed.run "$@"',
    }
    for name, body in commands.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(settings("vit")))
    slurm = {"SLURM_NNODES": "1", "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "localhost", "SLURM_NTASKS": "1"}
    given = {"GPUS": "2", "RECIPE": str(tmp_path / "recipe.yaml"), "RUN": str(tmp_path / "run")}
    path = f"{tmp_path}:{os.environ['PATH']}"
    subprocess.run(["bash", "-c", script], env={**ENVIRONMENT, **slurm, **given, "PATH": path}, check=True)
    assert (tmp_path / "run/checkpoints/last.safetensors").exists()


def on_host(
    host: Host, run: Path, nodes: str, is_first: bool, seconds: int = 600, own_store: bool = False
) -> subprocess.Popen[bytes]:
    """One process of a training whose meeting point is the first host."""
    meeting = ("--rdzv-backend", "c10d", "--rdzv-id", "test", "--rdzv-endpoint", "10.77.0.1:29400")
    details = ("--rdzv-conf", f"is_host={int(is_first)},last_call_timeout=3", "--local-addr", host.address)
    command = torchrun(*training(run), processes=1, options=("--nnodes", nodes, *meeting, *details))
    network = {"GLOO_SOCKET_IFNAME": host.cable, "ROBUSTVIT_TIMEOUT": str(seconds)}
    network |= {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"} if own_store else {}
    return host.start(command, env={**ENVIRONMENT, **network})


def test_a_process_of_the_second_host_is_killed(tmp_path, expected):
    run = tmp_path / "run"
    with two_hosts("rvk") as (first, second):
        one = on_host(first, run, "2", is_first=True)
        two = on_host(second, tmp_path / "elsewhere", "2", is_first=False)
        wait_for_state(run, one, two)
        os.kill(workers(two)[0], signal.SIGKILL)
        assert (one.wait(), two.wait()) == (0, 0)
    assert written(run) == expected
    assert not (tmp_path / "elsewhere").exists(), "only the first process writes"


def test_the_second_host_is_lost(tmp_path, expected):
    run = tmp_path / "run"
    with two_hosts("rvl") as (first, second):
        one = on_host(first, run, "1:2", is_first=True, seconds=15)
        two = on_host(second, tmp_path / "elsewhere", "1:2", is_first=False, seconds=15)
        wait_for(lambda: workers(two), one, two)
        wait_for_state(run, one, two)
        second.cut()
        assert one.wait() == 0
    assert written(run) == expected


def test_a_host_that_joins_later(tmp_path, expected):
    """torchrun tells a newcomer where to meet only if it makes a new store for each attempt (docs/processes.md)."""
    run = tmp_path / "run"
    with two_hosts("rvj") as (first, second):
        one = on_host(first, run, "1:2", is_first=True, own_store=True)
        wait_for_state(run, one)
        two = on_host(second, tmp_path / "elsewhere", "1:2", is_first=False, own_store=True)
        wait_for(lambda: workers(two), one, two)
        assert (one.wait(), two.wait()) == (0, 0)
    assert written(run) == expected

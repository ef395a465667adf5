"""What happens to real users: kills, interruptions, two terminals, the README."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

import robustvit as rv
from robustvit.core.journal import read_rows
from robustvit.models import fingerprint, load_model
from robustvit.training import recipe_from, train
from test_training import TINY

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "120"}
ROBUSTVIT = [sys.executable, "-c", "from robustvit.cli.main import main; main()"]
SLOWER = {**TINY, "epochs": 6, "checkpoints": {"select": "last", "seconds": 0}}


def start(*arguments, cwd):
    return subprocess.Popen(
        [*ROBUSTVIT, *map(str, arguments)],
        cwd=cwd,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(*arguments, cwd):
    process = start(*arguments, cwd=cwd)
    out, err = process.communicate()
    return process.returncode, out, err


def wait_for(condition, process):
    """As long as the process lives: a busy machine is slow."""
    while not condition():
        assert process.poll() is None, f"ended before: {process.communicate()[1]}"
        time.sleep(0.01)


@pytest.fixture
def recipe(tmp_path):
    (tmp_path / "slower.yaml").write_text(yaml.safe_dump(SLOWER))
    return tmp_path


def states(run):
    return list((run / "checkpoints").glob("state-*.pt"))


def test_kill_at_any_moment_and_the_same_command_ends_with_the_same_weights(recipe):
    whole = train(recipe_from(SLOWER), run=recipe / "whole", quiet=True)
    run = recipe / "killed"
    moments = random.Random(0)
    kills = 0
    for wanted in (1, 2, 3):
        process = start("train", "slower.yaml", "--run", run, cwd=recipe)
        newest = max((path.name for path in states(run)), default="")
        wait_for(lambda newest=newest: any(path.name > newest for path in states(run)), process)
        time.sleep(moments.uniform(0, 0.3))
        process.send_signal(signal.SIGKILL)
        process.wait()
        kills += process.returncode == -signal.SIGKILL
        assert kills == wanted
    code, _, err = finish("train", "slower.yaml", "--run", run, cwd=recipe)
    assert code == 0, err
    assert "resuming at step" in err
    for name in ("last", "best"):
        paths = [folder / "checkpoints" / f"{name}.safetensors" for folder in (whole.path, run)]
        assert fingerprint(load_model(paths[0])) == fingerprint(load_model(paths[1]))
    assert (run / "metrics.jsonl").read_text() == whole.metrics.path.read_text()
    code, _, err = finish("train", "slower.yaml", "--run", run, cwd=recipe)
    assert code == 0
    assert "already trained" in err


@pytest.mark.parametrize(("number", "expected"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ctrl_c_saves_and_ends_with_its_code(recipe, number, expected):
    run = recipe / "run"
    process = start("train", "slower.yaml", "--run", run, "-o", "checkpoints.seconds=1000", cwd=recipe)
    wait_for(lambda: (run / "metrics.jsonl").exists(), process)
    process.send_signal(number)
    _, err = process.communicate()
    assert process.returncode == expected
    assert "the same command resumes" in err
    assert "Traceback" not in err
    assert len(states(run)) == 1
    assert finish("train", "slower.yaml", "--run", run, cwd=recipe)[0] == 0


def test_a_second_process_is_refused_and_the_first_goes_on(recipe):
    run = recipe / "run"
    first = start("train", "slower.yaml", "--run", run, "-o", "epochs=400", cwd=recipe)
    wait_for(lambda: states(run), first)
    code, _, err = finish("train", "slower.yaml", "--run", run, "-o", "epochs=400", cwd=recipe)
    assert code == 2
    assert f"pid {first.pid}" in err
    assert first.poll() is None
    first.kill()
    first.communicate()


def test_an_evaluation_killed_at_any_moment_goes_on_to_the_same_outcomes(recipe):
    run = train(recipe_from({**SLOWER, "epochs": 1}), run=recipe / "run", quiet=True).path
    command = [
        "evaluate",
        run / "checkpoints" / "last.safetensors",
        "--data",
        "digits",
        "--eps",
        "0.02",
        "--suite",
        "pgd-60x2",
        "--batch-size",
        "16",
    ]
    code, _, err = finish(*command, "--run", recipe / "whole", cwd=recipe)
    assert code == 0, err
    ledgers = lambda: list((recipe / "killed").glob("eval/*/ledger-0.jsonl"))  # noqa: E731
    for _ in range(3):
        process = start(*command, "--run", recipe / "killed", cwd=recipe)
        size = ledgers()[0].stat().st_size if ledgers() else 0
        wait_for(lambda size=size: ledgers() and ledgers()[0].stat().st_size > size, process)
        process.kill()
        process.wait()
        assert not list((recipe / "killed").glob("eval/*/result.json"))
    assert finish(*command, "--run", recipe / "killed", cwd=recipe)[0] == 0
    assert outcomes(recipe / "killed") == outcomes(recipe / "whole")


def test_processes_end_with_the_one_that_started_them(recipe):
    run = train(recipe_from({**SLOWER, "epochs": 1}), run=recipe / "run", quiet=True).path
    command = ["evaluate", run, "--suite", "pgd-200x9", "--eps", "0.001", "--processes", "2", "--batch-size", "8"]
    process = start(*command, cwd=recipe)
    wait_for(lambda: len(list(run.glob("eval/*/ledger-*.jsonl"))) == 2, process)
    children = {int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()}
    assert len(children) >= 2
    process.kill()
    process.wait()
    while any(_works(pid) for pid in children):
        time.sleep(0.1)
    attacked, model = sum(stage != "clean" for stage, _ in outcomes(run)), rv.resolve_model(run)
    all_of_them = rv.evaluate(model.module(), model.recipe["data"], suite="accuracy", quiet=True).is_correct.sum()
    assert attacked < all_of_them, "they ended before their work did"


def _works(pid):
    try:
        return "spawn_main" in Path(f"/proc/{pid}/cmdline").read_text() and "Z" not in _state(pid)
    except OSError:
        return False


def _state(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def outcomes(run):
    rows = [row for path in run.glob("eval/*/ledger-*.jsonl") for row in read_rows(path)]
    found = {(row["stage"], row["image"]): (row["outcome"], row["margin"], row.get("steps")) for row in rows}
    assert len(found) == len(rows), "something was computed twice"
    return found


def test_any_number_of_processes_gives_the_same_outcomes_and_may_go_on(recipe):
    run = train(recipe_from({**SLOWER, "epochs": 1}), run=recipe / "run", quiet=True).path
    command = [
        "evaluate",
        run / "checkpoints" / "last.safetensors",
        "--data",
        "digits",
        "--images",
        "200",
        "--eps",
        "0.02",
        "--suite",
        "apgd-ce-x2",
        "--batch-size",
        "16",
    ]
    assert finish(*command, "--run", recipe / "one", cwd=recipe)[0] == 0
    process = start(*command, "--run", recipe / "two", "--processes", 2, cwd=recipe)
    wait_for(lambda: len(list((recipe / "two").glob("eval/*/ledger-*.jsonl"))) == 2, process)
    children = subprocess.run(
        ["ps", "--ppid", str(process.pid), "-o", "pid="], capture_output=True, text=True
    ).stdout.split()
    for child in children:  # a worker dies, the whole is reported and nothing is lost
        os.kill(int(child), signal.SIGKILL)
    _, err = process.communicate()
    assert process.returncode == 2
    assert "the same command resumes" in err
    assert 0 < len(outcomes(recipe / "two")) < len(outcomes(recipe / "one"))
    code, _, err = finish(*command, "--run", recipe / "two", "--processes", 3, cwd=recipe)
    assert code == 0, err
    assert outcomes(recipe / "two") == outcomes(recipe / "one")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "--"]
    done = subprocess.run(
        [*torchrun, "robustvit", *map(str, command), "--run", str(recipe / "launched")],
        cwd=recipe,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("result.json") == 1
    assert outcomes(recipe / "launched") == outcomes(recipe / "one")


def test_the_commands_of_the_readme_run(recipe):
    """`make quickstart` itself is run in full by the slow proofs; here every other command and the Python lines."""
    readme = (Path(__file__).parents[1] / "README.md").read_text()
    python = readme.partition("```python\n")[2].partition("```")[0]
    assert python.count("\n") <= 12
    trained = finish("train", "digits/trades", "-o", "epochs=1", "--run", "runs/quickstart/trades", cwd=recipe)
    assert trained[0] == 0, trained[2]
    done = subprocess.run([sys.executable, "-c", python], cwd=recipe, env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    shell = readme.partition("```sh\n# by hand")[2].partition("```")[0]
    commands = [line.partition("#")[0].split() for line in shell.splitlines() if line.startswith("robustvit")]
    assert len(commands) >= 4
    for name, *arguments in commands:
        assert name == "robustvit"
        if arguments[0] == "train":
            arguments += ["-o", "epochs=1"]
        if arguments[0] in ("evaluate", "card") and "--images" not in arguments:
            arguments += ["--images", "20"]
        code, _, err = finish(*arguments, cwd=recipe)
        assert code == 0, f"{arguments}: {err}"


def test_every_command_has_an_example():
    code, out, _ = finish("--help", cwd=".")
    assert code == 0
    assert "torch" not in out
    for name in ("quickstart", "train", "evaluate", "report", "list", "check"):
        assert name in out
        assert "Example: robustvit" in finish(name, "--help", cwd=".")[1]


def test_list_shows_every_registered_name():
    import robustvit.analysis
    import robustvit.training  # noqa: F401
    from robustvit.core.component import registered

    _, out, _ = finish("list", cwd=".")
    for kind in ("analysis", "attack", "objective", "data", "schedule", "augmentation", "logger"):
        for name in registered(kind):
            if not name.startswith(("test-", "toy-")):
                assert f"  {name}" in out


@pytest.mark.slow
def test_quickstart(tmp_path):
    code, out, err = finish("quickstart", cwd=tmp_path)
    assert code == 0, err
    rows = [line.split() for line in out.splitlines() if line.startswith("digits-")]
    clean = {row[0]: float(row[4]) for row in rows}
    robust = {row[0]: float(row[6]) for row in rows}
    assert robust["digits-standard"] < 10
    assert robust["digits-trades"] > 60
    assert min(clean.values()) > 90
    assert (tmp_path / "runs/quickstart/report.html").stat().st_size > 10_000
    code, again, err = finish("quickstart", cwd=tmp_path)
    assert code == 0
    assert again == out
    assert err.count("already trained") == 2

"""Commands under a real torchrun: each process takes its share, and the outcome is that of one process.

They take minutes: `make slow AREA=launched`.
"""

import subprocess
import sys

import pytest

from robustvit.core.result_files import read_result
from robustvit.training import train
from test_elastic import ENVIRONMENT, torchrun
from test_sweeps import TINY, options

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("launched") / "run"
    return train("digits/trades", folder, ["epochs=1"], quiet=True).path


def launched(*command: object, is_refused: bool = False) -> str:
    """What two processes say."""
    given = torchrun(*map(str, command), restarts=0, options=("--standalone",))
    done = subprocess.run(given, env=ENVIRONMENT, capture_output=True, text=True)
    assert (done.returncode != 0) == is_refused, done.stderr
    return done.stdout + done.stderr


def test_analyses_that_need_the_same_adversarial_images(run):
    names = {"input_gradients", "confusion"}
    launched("analyze", run, "--what", ",".join(names), "--on", "pgd-20", "--images", 256)
    assert {path.parent.name.rpartition("-")[0] for path in run.glob("analysis/*/finding.json")} == names
    assert len(list(run.glob("analysis/adversarial-*"))) == 1


def test_a_card_is_that_of_one_process(run, tmp_path):
    folders = [tmp_path / "one", tmp_path / "two"]
    card = ["card", run, "--preset", "quick", "--images", 64, "--run"]
    subprocess.run([sys.executable, "-m", "robustvit", *map(str, card), folders[0]], env=ENVIRONMENT, check=True)
    launched(*card, folders[1])
    one, two = ({r.title: r for r in map(read_result, results(folder))} for folder in folders)
    assert one.keys() == two.keys()
    assert len(one) > 1
    for name in one:
        assert one[name].clean_accuracy == two[name].clean_accuracy
    assert all((folder / "card.html").exists() for folder in folders)


def results(folder):
    return sorted(path.parent for path in folder.rglob("result.json"))


def test_a_sweep_is_spread_over_processes(tmp_path):
    root = tmp_path / "sweep"
    sweep = ["sweep", "digits/trades", *options("seed=0,1", *TINY), "--suite", "pgd-2", "--images", 32, "--run", root]
    said = launched(*sweep)
    assert {f"process {number} of 2: seed={number - 1}" in said for number in (1, 2)} == {True}
    assert "tried again" not in said
    assert len(list(root.glob("analysis/sweep-*/finding.json"))) == 1
    assert len(results(root)) == 2


def test_a_mistake_is_said_once(tmp_path):
    for command in (
        ["train", "digits/trades", "-o", "epocs=1", "--run", tmp_path / "a"],
        ["train", "digits/trades", "-o", "batch_size=9", "-o", "accumulate=4", "--run", tmp_path / "b"],
    ):
        said = launched(*command, is_refused=True)
        assert said.count("robustvit: ") == 1, said
        assert said.count("exitcode  : 2") >= 1

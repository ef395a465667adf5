"""Evaluations on machines without a shared folder: rows are exchanged, and ledgers joined."""

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

import robustvit.evaluation.store as stores
from conftest import tiny_vit
from robustvit.cli.main import app
from robustvit.core.errors import UserError
from robustvit.core.journal import read_checked
from robustvit.core.processes import run_processes
from robustvit.core.world import World
from robustvit.evaluation import evaluate
from robustvit.evaluation.join import join_evaluations
from robustvit.threats import LpBall

QUESTION = {"suite": "pgd-2x2", "threat": LpBall("inf", 0.05), "images": 40, "batch_size": 16, "quiet": True}
MODEL = {"num_classes": 10, "img_size": 8}


def asked(run: Path, world: World | None = None, **changed):
    options = {**QUESTION, **changed, "run": run, "device": "cpu", "checks": False}
    return evaluate(tiny_vit(), "digits", world=world or World(), **options)


def machines(*, world: World, folder: str) -> None:
    """Each process on a machine of its own: a folder that the other doesn't see."""
    stores.SEEN_SECONDS = 0.1
    for _ in range(2):  # the second time nothing is computed
        result = asked(Path(folder) / str(world.rank), world)
        assert len(result.is_robust) == 40


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("merge")
    asked(root / "alone")
    run_processes(2, machines, {"folder": str(root)}, root, connected=True)
    return root


def ledger(run: Path) -> dict[tuple[str, int], str]:
    files = run.glob("eval/*/ledger-*.jsonl")
    return {(row["stage"], row["image"]): row["outcome"] for path in files for row in read_checked(path).rows}


def evaluation(run: Path) -> Path:
    (folder,) = run.glob("eval/*")
    return folder


def result(run: Path) -> dict:
    kept = json.loads((evaluation(run) / "result.json").read_text())
    return {key: kept[key] for key in ("title", "measures", "threat")}


def test_machines_without_a_shared_folder_exchange_their_rows(folders):
    everything = ledger(folders / "alone")
    assert ledger(folders / "0") == everything, "the folder of the first process holds all"
    second = ledger(folders / "1")
    assert 0 < len(second) < len(everything)
    assert {image % 2 for _, image in second} == {1}, "the others hold what they did"
    assert result(folders / "0") == result(folders / "alone")
    assert not (evaluation(folders / "1") / "result.json").exists()
    assert (evaluation(folders / "1") / "identity.json").exists()
    assert not list(folders.glob("*/eval/*/.seen-*"))
    rows = [row for path in evaluation(folders / "0").glob("ledger-*.jsonl") for row in read_checked(path).rows]
    assert len(rows) == len(everything), "each row once"


def test_ledgers_of_two_machines_make_the_result_of_one(folders, tmp_path):
    """The first machine lost the rows of the other."""
    shutil.copytree(folders / "0", tmp_path / "0")
    folder = evaluation(tmp_path / "0")
    (folder / "result.json").unlink()
    path = folder / "ledger-0.jsonl"
    whole = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(line for line in whole if json.loads(line)["image"] % 2 == 0))
    into = tmp_path / "joined"
    command = ["merge", str(tmp_path / "0"), str(folders / "1"), "--into", str(into)]
    for _ in range(2):  # the second time adds nothing
        output = CliRunner().invoke(app, command)
        assert output.exit_code == 0, output.output
    assert "0 rows added" in output.output
    assert ledger(into) == ledger(folders / "alone")
    before = {path.name: path.read_bytes() for path in evaluation(into).glob("ledger-*.jsonl")}
    asked(into)
    assert result(into) == result(folders / "alone")
    assert {path.name: path.read_bytes() for path in evaluation(into).glob("ledger-*.jsonl")} == before


def test_what_does_not_belong_together_is_refused(folders, tmp_path):
    with pytest.raises(UserError, match="holds no evaluation"):
        join_evaluations([tmp_path], tmp_path / "into")
    with pytest.raises(UserError, match="leave it out"):
        join_evaluations([folders / "0"], folders / "0")
    shutil.copytree(folders / "1", tmp_path / "changed")
    path = next(evaluation(tmp_path / "changed").glob("ledger-*.jsonl"))
    path.write_bytes(path.read_bytes().replace(b'"image": 1,', b'"image": 3,'))
    with pytest.raises(UserError, match="line 1: damaged"):
        join_evaluations([tmp_path / "changed"], tmp_path / "into")
    shutil.copytree(folders / "0", tmp_path / "other")
    other = asked(tmp_path / "asked", seed=1)
    identity = Path(other.folder) / "identity.json"
    shutil.copyfile(identity, evaluation(tmp_path / "other") / "identity.json")
    with pytest.raises(UserError, match="another seed than .* other questions"):
        join_evaluations([folders / "1"], tmp_path / "other")

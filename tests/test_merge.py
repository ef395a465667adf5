"""Evaluations on machines without a shared folder: rows are exchanged, and ledgers joined."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import robustvit.evaluation.store as stores
from conftest import tiny_vit
from robustvit.cli.main import app
from robustvit.core.errors import UserError
from robustvit.core.journal import read_checked
from robustvit.core.world import World
from robustvit.evaluation import evaluate
from robustvit.evaluation.join import join_evaluations
from robustvit.threats import LpBall

QUESTION = {"suite": "pgd-2x2", "threat": LpBall("inf", 0.05), "images": 40, "batch_size": 16, "quiet": True}


def asked(run: Path, world: World | None = None, model: nn.Module | None = None, **changed):
    options = {**QUESTION, **changed, "run": run, "device": "cpu", "checks": False}
    return evaluate(model or tiny_vit(), "digits", world=world or World(), **options)


@dataclass(frozen=True)
class Machine(World):
    """A thread in place of a machine: the others' values come through memory."""

    values: list[Any] = field(default_factory=list, compare=False)
    meeting: Barrier | None = field(default=None, compare=False)

    def gather(self, value):
        self.values[self.rank] = value
        self.meeting.wait(60)
        everyone = list(self.values)
        self.meeting.wait(60)
        return everyone

    def broadcast(self, value):
        return self.gather(value)[0]

    def barrier(self):
        self.gather(None)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Of a machine alone, and of two that don't see each other's: asked twice, the second time nothing is computed."""
    root, backends = tmp_path_factory.mktemp("merge"), (torch.backends.cudnn.conv, torch.backends.cuda.matmul)
    asked(root / "alone")
    before = [backend.fp32_precision for backend in backends]
    values, meeting = [None, None], Barrier(2)
    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(2) as threads:
        patch.setattr(stores, "SEEN_SECONDS", 0.1)
        for _ in range(2):
            machines = [Machine(rank, 2, values=values, meeting=meeting) for rank in range(2)]
            models = [tiny_vit() for _ in machines]  # here, where no other thread draws numbers
            work = [(root / str(machine.rank), machine, models[machine.rank]) for machine in machines]
            for done in [threads.submit(asked, *arguments) for arguments in work]:
                assert len(done.result().is_robust) == 40
    for backend, kind in zip(backends, before, strict=True):
        backend.fp32_precision = kind  # threads put it back in any order
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
    path.write_bytes(path.read_bytes().replace(b'"clean"', b'"cleam"', 1))
    with pytest.raises(UserError, match="line 1: damaged"):
        join_evaluations([tmp_path / "changed"], tmp_path / "into")
    shutil.copytree(folders / "0", tmp_path / "other")
    other = asked(tmp_path / "asked", seed=1)
    identity = Path(other.folder) / "identity.json"
    shutil.copyfile(identity, evaluation(tmp_path / "other") / "identity.json")
    with pytest.raises(UserError, match="another .*seed than .* other questions"):
        join_evaluations([folders / "1"], tmp_path / "other")

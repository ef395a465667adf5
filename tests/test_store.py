"""Where work is kept: no old result for another question, no damaged row counted, no warning lost."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import robustvit as rv
from conftest import tiny_vit
from robustvit.analysis import analyze
from robustvit.core.errors import UserError
from robustvit.core.journal import checked_line, read_checked
from robustvit.core.progress import Progress
from robustvit.core.result import ResultWarning
from robustvit.core.world import World
from robustvit.evaluation import Accuracy, Attacked, evaluate, open_subject
from robustvit.evaluation.ledger import Ledger
from robustvit.evaluation.store import Store

THREAT = rv.LpBall("inf", 0.1)


class Scaled(nn.Module):
    """The same weights and the same text, another function."""

    def __init__(self, body, factor):
        super().__init__()
        self.body, self.factor = body, factor

    def forward(self, x):
        return self.factor * self.body(x)


def test_an_analysis_never_hands_back_the_finding_of_another_model(tmp_path):
    body = tiny_vit()
    findings = [
        analyze(Scaled(body, factor), "digits", what="input_gradients", images=8, run=tmp_path, quiet=True)[0]
        for factor in (1, -1)
    ]
    assert len(list(tmp_path.glob("analysis/*/finding.json"))) == 2
    pictures = [finding.arrays["pictures"] for finding in findings]
    assert not np.array_equal(*pictures)


def test_models_whose_outputs_are_near_have_folders_of_their_own(trained, digits, tmp_path):
    """Hashes of behavior are coarse, so that two machines agree; the logits next to them tell such models apart."""

    class Moved(Scaled):
        def forward(self, x):
            return nn.functional.one_hot(self.body(x).argmax(1), 10) + self.factor * torch.eye(10)[3]

    folders = [
        evaluate(Moved(trained, shift), digits, suite="clean", threat=THREAT, run=tmp_path, quiet=True).folder
        for shift in (0.0, 0.0035, 1e-5, 0.0035)
    ]
    assert folders[1] == f"{folders[0]}-2", "they differ by more than a thousandth of the spread"
    assert folders[2] == folders[0], "two machines may differ by as much"
    assert folders[3] == folders[1]


@pytest.fixture
def finished(trained, digits, tmp_path):
    result = evaluate(trained, digits, suite="pgd-3", threat=THREAT, images=60, run=tmp_path, quiet=True)
    (Path(result.folder) / "result.json").unlink()
    return result


def test_a_damaged_row_is_named_and_computed_again(trained, digits, tmp_path, finished, capsys):
    path = Path(finished.folder) / "ledger-0.jsonl"
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    number = next(i for i, line in enumerate(lines) if b'"survived"' in line)
    row = json.loads(lines[number])
    damages = [lines[number].replace(b'"survived"', b'"fooled"'), lines[number][:40] + b"\n", b"{}\n", b"\xff\xfe\n"]
    for key, value in row.items():
        if key != "crc":
            other = "x" if isinstance(value, str) else 123456789
            damages.append(json.dumps({**row, key: other}).encode() + b"\n")
    for damaged in damages:
        path.write_bytes(b"".join([*lines[:number], damaged, *lines[number + 1 :]]))
        result = evaluate(trained, digits, suite="pgd-3", threat=THREAT, images=60, run=tmp_path, quiet=True)
        assert np.array_equal(result.is_robust, finished.is_robust), damaged
        assert f"1 damaged rows (lines {number + 1})" in capsys.readouterr().err, damaged
        assert not read_checked(path).damaged
        assert len(read_checked(path).rows) == len(lines)
        (Path(finished.folder) / "result.json").unlink()


def test_repeated_and_swapped_rows_change_nothing(trained, digits, tmp_path, finished):
    path = Path(finished.folder) / "ledger-0.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[5], *reversed(lines), lines[70]]))
    result = evaluate(trained, digits, suite="pgd-3", threat=THREAT, images=60, run=tmp_path, quiet=True)
    assert np.array_equal(result.is_robust, finished.is_robust)


def test_a_row_that_is_whole_and_makes_no_sense_is_refused(trained, digits, tmp_path, finished):
    path = Path(finished.folder) / "ledger-0.jsonl"
    for row in ({"stage": "pgd-3", "image": 1, "outcome": "vanished"}, {"stage": "pgd-3"}, {"images": "!", "stage": 1}):
        path.write_bytes(checked_line(row))
        with pytest.raises(UserError, match="not a row of a ledger"):
            evaluate(trained, digits, suite="pgd-3", threat=THREAT, images=60, run=tmp_path, quiet=True)


def test_a_warning_of_another_process_reaches_the_result(trained, digits, tmp_path, monkeypatch):
    def one_after_the_other(count, work, arguments, folder):
        for rank in range(count):
            work(world=World(rank, count), **arguments)

    def hungry(x):
        if x.requires_grad and len(x) > 20:
            torch.empty(1 << 50)
        return trained(x)

    monkeypatch.setattr("robustvit.evaluation.engine.run_processes", one_after_the_other)
    options = {"suite": "pgd-3", "threat": THREAT, "images": 120, "quiet": True, "checks": False}
    result = evaluate(hungry, digits, run=tmp_path, processes=2, **options)
    assert "out-of-memory" in {warning.name for warning in result.warnings}
    alone = evaluate(trained, digits, **options)
    assert np.array_equal(result.is_robust, alone.is_robust)
    (Path(result.folder) / "result.json").unlink()
    again = evaluate(hungry, digits, run=tmp_path, processes=2, **options)
    assert "out-of-memory" in {warning.name for warning in again.warnings}, "also after a resume"


def test_an_identity_is_recognized_after_it_was_written(trained, digits, tmp_path):
    with open_subject(trained, digits, images=16).ready() as subject:
        identity = {"levels": (1, 2), "by": {3: "c"}}
        stores = [Store.open(tmp_path, "levels", identity, subject, World()) for _ in range(2)]
        for store in stores:
            with store.lock("testing"):
                assert store.folder == stores[0].folder


def test_one_process_sees_what_others_write(tmp_path):
    mine, theirs = Ledger(tmp_path, 0), Ledger(tmp_path, 1)
    theirs.record([{"stage": "clean", "image": 3, "outcome": "correct", "predicted": 1, "margin": -1.0}])
    theirs.warn(ResultWarning("name", "observation"))
    assert mine.outcome("clean", 3) is None
    mine.refresh()
    assert mine.outcome("clean", 3) == "correct"
    assert mine.warnings == (ResultWarning("name", "observation"),)


def test_the_library_never_reads_the_launchers_environment(trained, digits, tmp_path, monkeypatch):
    """A user's own distributed script evaluates on one rank alone: nothing may wait for the others."""
    for name, value in {"RANK": "0", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}.items():
        monkeypatch.setenv(name, value)
    result = evaluate(trained, digits, suite="fgsm", threat=THREAT, images=16, run=tmp_path, quiet=True)
    assert result.provenance.processes == 1


@pytest.fixture
def counts(monkeypatch):
    """What the progress of each stage or condition that is shown begins with and goes on to."""
    shown = {}

    class Recorded(Progress):
        def __enter__(self):
            if not self.quiet:
                shown[self.title] = [self.count]
            return super().__enter__()

        def update(self, count, **facts):
            if not self.quiet and count != self.count:
                shown[self.title].append(count)
            self.count = count

    for module in ("runner", "conditions"):
        monkeypatch.setattr(f"robustvit.evaluation.{module}.Progress", Recorded)
    return shown


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("evaluator", [Attacked(threat=THREAT, suite="clean"), Accuracy(conditions=["clean"])])
def test_progress_begins_with_what_all_processes_have_done(trained, digits, tmp_path, counts, evaluator, first):
    with open_subject(trained, digits, images=40, batch_size=8).ready() as subject:
        indices = torch.arange(40)
        evaluation = evaluator.begin(replace(subject, indices=indices))
        ledgers = [Ledger(tmp_path, rank) for rank in range(2)]  # opened before anything is written
        for rank in (first, 1 - first):
            evaluation.advance(ledgers[rank], World(rank, 2), [], quiet=rank > 0)
    assert list(counts.values()) == [[0, 8, 16, 20], [20, 28, 36, 40]][first : first + 1]


def test_progress_of_several_processes_shows_the_whole(trained, digits, tmp_path, counts):
    with open_subject(trained, digits, images=60, batch_size=8).ready() as subject:
        evaluation = Attacked(threat=THREAT, suite=["fgsm", "pgd-3"]).begin(subject)
        ledger, other = Ledger(tmp_path, 0), Ledger(tmp_path, 1)  # opened before anything is written
        for world, mine in ((World(1, 2), other), (World(0, 2), ledger)):
            evaluation.advance(mine, world, [], quiet=not world.is_first)
        right = sum(ledger.outcome("clean", i) == "correct" for i in subject.indices.tolist())
        left = sum(ledger.outcome("fgsm", i) not in ("fooled", None) for i in subject.indices.tolist())
    ends = {title: shown[-1] for title, shown in counts.items() if shown[-1]}
    assert ends == {"clean accuracy": 60, "fgsm": right, "pgd-3": left}

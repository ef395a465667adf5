"""Files survive what happens to them."""

import multiprocessing
import os
import subprocess
import sys

import pytest

from robustvit.core.errors import UserError
from robustvit.core.files import locked, write_atomic, write_json, write_text
from robustvit.core.journal import Journal, read_rows


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path):
    path = tmp_path / "file.txt"
    write_text(path, "old")

    def fail(file):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    def fail_as_numpy(file):
        raise OSError("76800 requested and 12160 written")

    with pytest.raises(UserError, match="No space left"):
        write_atomic(path, fail)
    with pytest.raises(UserError, match="12160 written; is the disk full?"):
        write_atomic(path, fail_as_numpy)
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["file.txt"]


@pytest.mark.parametrize("torn", [b'{"a": 3', b'{"a": 3}garb\n', b"\x00\x00"])
def test_a_torn_last_line_is_cut_before_the_next_row(tmp_path, torn):
    journal = Journal(tmp_path / "j.jsonl")
    journal.append([{"a": 1}, {"a": 2}])
    with journal.path.open("ab") as file:
        file.write(torn)
    assert journal.repair() == [{"a": 1}, {"a": 2}]
    journal.append([{"a": 4}])
    assert read_rows(journal.path) == [{"a": 1}, {"a": 2}, {"a": 4}]


def test_a_damaged_line_in_the_middle_is_reported_not_skipped(tmp_path):
    path = tmp_path / "j.jsonl"
    path.write_bytes(b'{"a": 1}\nnonsense\n{"a": 2}\n')
    with pytest.raises(UserError, match="line 2"):
        read_rows(path)


def test_a_full_disk_is_reported_and_the_rows_before_stay(tmp_path):
    code = f"""
import resource
from pathlib import Path
from robustvit.core.journal import Journal
from robustvit.core.errors import UserError
journal = Journal(Path({str(tmp_path)!r}) / "j.jsonl")
journal.append([{{"a": 1}}])
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
try:
    journal.append([{{"a": "x" * 500}}])
except UserError as error:
    print(error)
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "could not be appended" in out
    assert read_rows(tmp_path / "j.jsonl") == [{"a": 1}]


def test_json_refuses_what_json_cannot_say(tmp_path):
    with pytest.raises(ValueError):
        write_json(tmp_path / "x.json", {"a": float("nan")})
    assert not (tmp_path / "x.json").exists()


def _try_lock(path, answers):
    try:
        with locked(path, "training"):
            answers.put("got it")
    except UserError as error:
        answers.put(str(error))


def test_the_lock_admits_one_process_and_goes_with_it(tmp_path):
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    path = tmp_path / ".lock"

    def other():
        process = context.Process(target=_try_lock, args=(path, answers))
        process.start()
        process.join()
        return answers.get()

    with locked(path, "training"):
        assert f"pid {os.getpid()}) is training here" in other()
    assert other() == "got it"


def _wait_for_lock(path, answers):
    with locked(path, "training", wait=True):
        answers.put((path.parent / "made").read_text())


def test_whoever_waits_for_the_lock_finds_the_work_done(tmp_path, capfd):
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    process = context.Process(target=_wait_for_lock, args=(tmp_path / ".lock", answers))
    with locked(tmp_path / ".lock", "training"):
        process.start()
        while "waiting for another process" not in capfd.readouterr().err:
            assert process.is_alive()
        (tmp_path / "made").write_text("whole")
    process.join()
    assert answers.get() == "whole"
    process.join()

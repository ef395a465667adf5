"""The tool behind `make mutants`: what it finds, draws, applies and counts."""

import subprocess
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1]))  # the tool is run as `python -m tests.mutants`
from tests.mutants.__main__ import summarize
from tests.mutants.draw import candidates_of, in_order
from tests.mutants.entries import (
    SOURCE,
    Entry,
    MutantList,
    StaleError,
    changed,
    existing,
    locate,
    read_list,
    stale,
    write_list,
)
from tests.mutants.measure import Measured, constants_made_of
from tests.mutants.run import CAUGHT, SURVIVED, Journal, Outcome, tree_digest

TOY = '''"""Not 1 < 2 here."""

LIMIT = 3


def inside(x: int = 1, low: float = 0.0) -> bool:
    """And not 1 + 1 here."""
    if x < 0:
        raise ValueError(f"{x + 1} is too small")
    return low <= x and not x > LIMIT


def minus(a: int, b: int) -> int:
    return a - b


def both(a: int, b: int) -> int:
    return minus(a, b)
'''
TESTS = """import time

from robustvit.losses import both, inside


def test_inside():
    assert inside(3)
    assert not inside(4)


def test_minus():
    assert both(3, 1) == 2


def test_loop():
    while inside(9):
        time.sleep(0.1)
"""


@pytest.fixture
def toy(tmp_path):
    package = tmp_path / SOURCE
    for folder in ("attacks", "objectives", "evaluation", "data", "training"):
        (package / folder).mkdir(parents=True)
    for file in ("__init__", "threats", "training/schedules", "training/optimizer"):
        (package / f"{file}.py").touch()
    (package / "losses.py").write_text(TOY)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_losses.py").write_text(TESTS)
    (tmp_path / "pyproject.toml").touch()
    return tmp_path


def test_candidates_change_what_a_line_means_and_nothing_that_it_says():
    found = {(entry.old, entry.new) for entry in candidates_of("losses.py", TOY, {"minus": [["int", "int"]]})}
    assert ("if x < 0:", "if x <= 0:") in found
    assert ("if x < 0:", "if x < 1:") in found
    assert ("LIMIT = 3", "LIMIT = 4") in found
    assert ("return low <= x and not x > LIMIT", "return low <= x or not x > LIMIT") in found
    assert ("return low <= x and not x > LIMIT", "return low <= x and x > LIMIT") in found
    assert ("return low <= x and not x > LIMIT", "return (low <= x)") in found
    assert ("return minus(a, b)", "return minus(b, a)") in found
    assert ("return a - b", "return a + b") in found
    assert {old for old, _ in found} == {line.strip() for line in TOY.splitlines() if "here" not in line} - {
        "", 'raise ValueError(f"{x + 1} is too small")', "def minus(a: int, b: int) -> int:",
        "def both(a: int, b: int) -> int:",
    }  # fmt: skip


def test_the_draw_depends_on_the_seed_and_on_the_lines_alone(toy):
    first = [entry.key for entry in in_order(0, toy)]
    assert first == [entry.key for entry in in_order(0, toy)]
    assert first != [entry.key for entry in in_order(1, toy)]
    assert len({key.split(":")[2] for key in first}) == len(first) == 6, "one for each line"
    path = toy / SOURCE / "losses.py"
    path.write_text("BEFORE = 7\n" + TOY.replace("return a - b", "return -b + a"))
    again = [entry.key for entry in in_order(0, toy)]
    kept = [key for key in first if "return a - b" not in key]
    assert [key for key in again if "BEFORE" not in key and "-b + a" not in key] == kept


def test_a_line_that_is_gone_or_not_alone_is_stale(toy):
    entry = Entry("losses.py", "minus", "return a - b", "return a + b")
    assert "    return a + b\n" in changed(entry, TOY)
    assert locate(entry, TOY) == TOY.splitlines().index("    return a - b")
    for source in (
        TOY.replace("a - b", "a"),
        TOY.replace("    return a - b", "    return a - b\n    return a - b"),
        "",
    ):
        with pytest.raises(StaleError, match="this line (is gone|occurs 2 times) in minus"):
            locate(entry, source)
    assert stale([entry], toy) == {}
    (toy / SOURCE / "losses.py").unlink()
    assert list(stale([entry], toy)) == [entry.id]


def test_a_list_is_read_as_it_was_written(tmp_path):
    entries = [
        Entry("losses.py", "", "A = 1", "A = 2", ("tests/a.py::t[x: 1]",), "by hand"),
        Entry("a.py", "f", "a", "b"),
    ]
    write_list(MutantList(3, 1, entries), tmp_path / "list.yaml")
    assert read_list(tmp_path / "list.yaml") == MutantList(3, 1, entries)


RUN = """
import sys
from pathlib import Path
from tests.mutants import run
from tests.mutants.entries import Entry

root, tests = Path(sys.argv[1]), "tests/test_losses.py::"
line = "return low <= x and not x > LIMIT"
entries = [
    Entry("losses.py", "inside", line, line.replace(">", ">="), (tests + "test_inside",)),
    Entry("losses.py", "both", "return minus(a, b)", "return minus(b, a)", (tests + "test_minus",)),
    Entry("losses.py", "minus", "return a - b", "return a + b", (tests + "test_inside",)),
]
endless = [Entry("losses.py", "inside", line, "return True", (tests + "test_loop",))]
outcomes = [*run.run_entries(entries, 2, root), *run.run_entries(endless, 1, root, limit=2.0)]
for entry, outcome in outcomes:
    print(entry.new, outcome.outcome, outcome.test)
print(run.failing_unchanged([tests + "test_inside", tests + "test_minus"], 2, root))
print(run.failing_unchanged([tests + "test_gone"], 1, root))
"""


def test_a_change_is_caught_survives_or_times_out_and_leaves_no_trace(toy):
    """In a process of its own, as its forks must not have imported robustvit."""
    command = [sys.executable, "-c", RUN, str(toy)]
    done = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=True)
    *outcomes, passing, unknown = done.stdout.splitlines()
    assert set(outcomes) == {
        "return low <= x and not x >= LIMIT caught tests/test_losses.py::test_inside",
        "return minus(b, a) caught tests/test_losses.py::test_minus",
        "return a + b survived ",
        "return True timed out ",
    }
    assert passing == "[]"
    assert "test_gone" in unknown
    assert (toy / SOURCE / "losses.py").read_text() == TOY


def test_what_is_known_holds_for_the_same_sources_tests_and_entry_alone(toy, tmp_path):
    entry, outcome = (
        Entry("losses.py", "", "A = 1", "A = 2", ("tests/a.py",)),
        Outcome("id", "caught", 1.0, "tests/a.py"),
    )
    root = toy.rename(toy.with_name("mutants"))
    before, path = tree_digest(root), root / "known" / "mutants.jsonl"
    Journal(path, before).record(entry, outcome)
    assert Journal(path, before).known == {Journal.key(entry): outcome}
    assert Journal.key(Entry("losses.py", "", "A = 1", "A = 2", ("tests/b.py",))) != Journal.key(entry)
    for file in (root / "tests" / "test_losses.py", root / SOURCE / "losses.py"):
        file.write_text(file.read_text() + "\n")
        assert tree_digest(root) != before
        assert Journal(path, tree_digest(root)).known == {}
        before = tree_digest(root)


def test_tests_that_are_gone_are_dropped(toy):
    kept = ("tests/test_losses.py::test_inside", "tests/test_losses.py::test_minus[1]")
    assert existing((*kept, "tests/test_losses.py::test_gone", "tests/test_gone.py::test_inside"), toy) == kept


@pytest.mark.parametrize(("survivors", "code"), [(0, 0), (1, 0), (2, 1)])
def test_a_run_fails_below_95_percent(survivors, code, tmp_path, capsys):
    entries = [Entry(f"{'ab'[i % 2]}/x.py", "f", f"a = {i}", "a = -1", ("tests/a.py",)) for i in range(20)]
    journal = Journal(tmp_path / "known" / "mutants.jsonl", "digest")
    for i, entry in enumerate(entries):
        journal.record(entry, Outcome(entry.id, SURVIVED if i < survivors else CAUGHT, 1.0))
    assert summarize(entries, journal) == code
    shown = capsys.readouterr().out
    assert all((str(entry) in shown) == (i < survivors) for i, entry in enumerate(entries))
    assert f"all              {20 - survivors} of   20 caught" in shown


def test_a_constant_concerns_what_is_made_of_it(tmp_path, monkeypatch):
    source = "A = 1\nB: int = 2\nC, D = A + 1, 0\nE = [\n    C,\n    3,\n]\n\n\ndef f():\n    return E\n"
    for line, names in (("A = 1", {"A", "C", "D", "E"}), ("B: int = 2", {"B"}), ("3,", {"E"})):
        assert constants_made_of(Entry("x.py", "", line, ""), source) == names
    monkeypatch.setattr("tests.mutants.measure.ROOT", tmp_path)
    (tmp_path / SOURCE).mkdir(parents=True)
    (tmp_path / SOURCE / "x.py").write_text(source)
    lines = {"y.py:f:return E": {"named"}, "y.py::E = 1": {"import"}, "y.py:g:return Elsewhere": {"other"}}
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_x.py").write_text("def test_b():\n    assert B == 2\n\n\ndef test_z():\n    pass\n")
    tests = ("named", "import", "other", "tests/test_x.py::test_b[1]", "tests/test_x.py::test_z")
    measured = Measured(dict.fromkeys(tests, 1.0), lines)
    assert measured.concerning(Entry("x.py", "", "A = 1", "A = 2")) == ("named",)
    assert measured.concerning(Entry("x.py", "", "B: int = 2", "B: int = 3")) == ("tests/test_x.py::test_b[1]",)

"""`python -m tests.mutants [run|draw|refresh|measure|settle]`, see CONTRIBUTING.md."""

import argparse
import dataclasses
import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from itertools import islice

from tests.mutants.draw import in_order
from tests.mutants.entries import LIST, Entry, MutantList, existing, read_list, stale, write_list
from tests.mutants.measure import Measured, measure
from tests.mutants.run import (
    CAUGHT,
    PROGRESS,
    SURVIVED,
    Journal,
    Outcome,
    failing_unchanged,
    run_entries,
    tree_digest,
    warm_up,
)  # fmt: skip

REQUIRED = 0.95
KEPT = 8
"""Tests that an entry keeps after one of them has caught it."""


def run(names: Sequence[str], workers: int, survivors: bool, baseline: bool) -> int:
    """The list, or the entries whose id or file begins so; 1 if too few are caught."""
    entries = read_list().entries
    if problems := stale(entries):
        print(*problems.values(), "`python -m tests.mutants refresh` replaces what was drawn", sep="\n")
        return 1
    journal = Journal(PROGRESS, tree_digest())
    counted = [entry for entry in entries if not entry.equivalent]
    if without := [entry for entry in counted if not entry.tests]:
        print("no test concerns these; write one and add its id:", *without, sep="\n")
    chosen = [e for e in counted if not names or any(e.id == name or e.file.startswith(name) for name in names)]
    if survivors:
        last = last_outcomes()
        chosen = [entry for entry in chosen if entry.id in last and last[entry.id].outcome == SURVIVED]
    todo = [entry for entry in chosen if entry.tests and Journal.key(entry) not in journal.known]
    warm_up()
    if baseline and todo and not _baseline_passes(todo, workers):
        return 1
    begin = time.monotonic()
    for done, (entry, outcome) in enumerate(run_entries(todo, workers), start=1):
        journal.record(entry, outcome)
        left = (time.monotonic() - begin) / done * (len(todo) - done)
        where = f"{entry.file} {entry.within}"
        print(f"{done}/{len(todo)} {outcome.outcome} {entry.id} {where}, {left / 60:.0f} min left", flush=True)
    return summarize(chosen, journal)


def _baseline_passes(todo: Sequence[Entry], workers: int) -> bool:
    tests = sorted({test for entry in todo for test in entry.tests})
    print(f"{len(tests)} tests on the sources as they are", flush=True)
    if failing := failing_unchanged(tests, workers):
        print("these fail without any change, so they can catch none:", *failing, sep="\n")
    return not failing


def last_outcomes() -> dict[str, Outcome]:
    """By id, whatever the sources were."""
    lines = PROGRESS.read_text().splitlines() if PROGRESS.exists() else []
    return {outcome.id: outcome for outcome in (Outcome(*json.loads(line)["outcome"]) for line in lines)}


def summarize(entries: Sequence[Entry], journal: Journal) -> int:
    outcomes = {entry.id: journal.known.get(Journal.key(entry), Outcome(entry.id, SURVIVED, 0)) for entry in entries}
    survivors = [entry for entry in entries if outcomes[entry.id].outcome == SURVIVED]
    print("", *survivors, "", sep="\n")
    total, missed = Counter(entry.package for entry in entries), Counter(entry.package for entry in survivors)
    for package in sorted(total):
        print(f"{package:<14} {total[package] - missed[package]:>4} of {total[package]:>4} caught")
    caught = len(entries) - len(survivors)
    late = sum(outcome.outcome not in (CAUGHT, SURVIVED) for outcome in outcomes.values())
    fraction = caught / max(len(entries), 1)
    print(f"{'all':<14} {caught:>4} of {len(entries):>4} caught ({100 * fraction:.1f} %), {late} by a timeout")
    if fraction < REQUIRED:
        print(f"fewer than {100 * REQUIRED:.0f} %: write tests that catch the survivors above")
    return int(fraction < REQUIRED)


def refresh(seed: int | None = None, drawn: int | None = None) -> int:
    """Reports entries whose line is gone, replaces those that were drawn by the next of the draw, drops lost tests."""
    mutants = read_list() if LIST.exists() else MutantList(seed or 0, drawn or 0)
    if drawn is not None:
        mutants.drawn = drawn
    if seed is not None and seed != mutants.seed:
        mutants.seed = seed
        mutants.entries = [entry for entry in mutants.entries if entry.about]
    problems = stale(mutants.entries)
    gone_by_hand = [entry for entry in mutants.entries if entry.about and entry.id in problems]
    print(*problems.values(), sep="\n")
    known = {entry.id: entry for entry in mutants.entries}
    by_hand = [entry for entry in mutants.entries if entry.about]
    lines = {(entry.file, entry.within, entry.old, entry.new) for entry in by_hand}
    order = (entry for entry in in_order(mutants.seed) if (entry.file, entry.within, entry.old, entry.new) not in lines)
    entries = [*by_hand, *(known.get(entry.id, entry) for entry in islice(order, mutants.drawn))]
    entries = [dataclasses.replace(entry, tests=existing(entry.tests)) for entry in entries]
    measured = Measured.read()
    mutants.entries = [
        entry if entry.tests or entry.equivalent else dataclasses.replace(entry, tests=measured.concerning(entry))
        for entry in entries
    ]
    write_list(mutants)
    new = [entry for entry in mutants.entries if entry.id not in known]
    print("drawn:", *new, sep="\n")
    print(f"{len(mutants.entries)} entries, {len(new)} of them new, {len(problems)} gone")
    if any(not entry.tests for entry in new):
        print("some have no tests: run `python -m tests.mutants measure`, then refresh once more")
    if gone_by_hand:
        print("made by hand, so write them anew for today's lines or remove them:", *gone_by_hand, sep="\n")
    return int(bool(gone_by_hand))


def settle() -> int:
    """The test that caught an entry comes first, and few others stay, so that the next run is faster."""
    mutants, journal, last = read_list(), Journal(PROGRESS, tree_digest()), last_outcomes()
    for number, entry in enumerate(mutants.entries):
        test = last[entry.id].test if entry.id in last else ""
        if named := next((one for one in entry.tests if one in (test, test.split("[")[0])), None):
            tests = tuple(dict.fromkeys([named, *entry.tests]))[:KEPT]
            settled = mutants.entries[number] = dataclasses.replace(entry, tests=tests)
            if (outcome := journal.known.get(Journal.key(entry))) is not None and settled != entry:
                journal.record(settled, outcome)
    write_list(mutants)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    commands = parser.add_subparsers(dest="command")
    running = commands.add_parser("run", help="apply the changes and print those that no test noticed")
    running.add_argument("names", nargs="*", help="ids or files; default: all")
    running.add_argument("--workers", type=int, default=2)
    running.add_argument("--survivors", action="store_true", help="only those that survived when they last ran")
    running.add_argument("--no-baseline", action="store_true", help="don't check that the tests pass unchanged")
    drawing = commands.add_parser("refresh", help="replace drawn entries whose line is gone")
    drawing.add_argument("--seed", type=int, help="draw anew with another seed")
    drawing.add_argument("--drawn", type=int, help="draw so many")
    commands.add_parser("measure", help="measure which tests run which lines (half an hour)")
    commands.add_parser("settle", help="put the test that caught an entry first")
    options = parser.parse_args()
    if options.command == "measure":
        measure()
        return 0
    if options.command == "refresh":
        return refresh(options.seed, options.drawn)
    if options.command == "settle":
        return settle()
    if options.command is None:
        options = running.parse_args([])
    return run(options.names, options.workers, options.survivors, not options.no_baseline)


if __name__ == "__main__":
    sys.exit(main())

"""The small form of a table or figure: its sweep, and what its results say about the claims."""

from pathlib import Path

from robustvit.core.errors import UserError
from robustvit.core.finding import Finding, write_finding
from robustvit.core.run import RunFolder
from robustvit.reproduce.entries import Entry
from robustvit.reproduce.finding import entry_finding
from robustvit.training.sweep import run_sweep
from robustvit.training.sweep_grid import sweep_from


def run_small(entry: Entry, root: Path, quiet: bool = False) -> Finding:
    """Trains and evaluates what is not there yet below `root`, and compares; stopped, the same call goes on."""
    assert entry.small is not None
    assert entry.small.sweep is not None
    sweep = sweep_from(entry.small.sweep, [])
    folder = root / sweep.name
    outcomes = run_sweep(sweep, folder, quiet)
    failed = [f"{point.folder}: {outcome}" for point, outcome in outcomes if isinstance(outcome, UserError)]
    if failed:
        head = f"{entry.name}: {len(failed)} of {len(outcomes)} runs failed; the same command tries them again:"
        raise UserError("\n".join([head, *failed]))
    finding = entry_finding(entry, sweep, outcomes)
    write_finding(RunFolder(folder).analyses / entry.name.replace("/", "-"), finding)
    return finding

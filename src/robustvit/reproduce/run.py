"""A form of a table or figure: its sweep or its models, and what the results say about the claims."""

from pathlib import Path

from robustvit.core.errors import UserError
from robustvit.core.finding import Finding, write_finding
from robustvit.core.result import Result
from robustvit.core.result_files import FILE, read_result
from robustvit.core.run import RunFolder
from robustvit.evaluation import Attacked, evaluator_from
from robustvit.reproduce.compare import Results
from robustvit.reproduce.entries import Entry, Small
from robustvit.reproduce.finding import entry_finding
from robustvit.reproduce.given import given_results
from robustvit.reproduce.swept import swept_results
from robustvit.training.recipe import recipe_from
from robustvit.training.sweep import run_sweep
from robustvit.training.sweep_grid import Point, Sweep, sweep_from


def run_small(entry: Entry, root: Path, quiet: bool = False) -> Finding:
    """Trains and evaluates what is not there yet below `root`, and compares; stopped, the same call goes on."""
    assert entry.small is not None
    if entry.small.given is not None:
        folder = root / "reproduce"
        return _compared(entry, entry.small, given_results(entry, entry.small, folder, quiet), folder)
    sweep = _sweep(entry.small)
    outcomes = run_sweep(sweep, root / sweep.name, quiet)
    failed = [f"{point.folder}: {outcome}" for point, outcome in outcomes if isinstance(outcome, UserError)]
    if failed:
        head = f"{entry.name}: {len(failed)} of {len(outcomes)} runs failed; the same command tries them again:"
        raise UserError("\n".join([head, *failed]))
    return _compared(entry, entry.small, swept_results(entry.small, sweep, outcomes), root / sweep.name)


def stored_finding(entry: Entry, root: Path) -> Finding | None:
    """Of a sweep at full scale, once every run of it was evaluated; nothing is run."""
    if entry.full is None or entry.full.stored is None:
        return None
    form = entry.full.stored
    sweep = _sweep(form)
    outcomes = [(point, _stored(sweep, point, root / sweep.name)) for point in sweep.points()]
    known = [(point, results) for point, results in outcomes if results is not None]
    if len(known) < len(outcomes):
        return None
    return _compared(entry, form, swept_results(form, sweep, known), root / sweep.name)


def _sweep(form: Small) -> Sweep:
    assert form.sweep is not None
    return sweep_from(form.sweep, [])


def _compared(entry: Entry, form: Small, results: Results, folder: Path) -> Finding:
    finding = entry_finding(entry, form, results)
    write_finding(RunFolder(folder).analyses / entry.name.replace("/", "-"), finding)
    return finding


def _stored(sweep: Sweep, point: Point, root: Path) -> tuple[Result, ...] | None:
    """A result for each suite, in their order; None while one of them is missing."""
    found = {
        result.title: result
        for path in RunFolder(root / point.folder).evaluations.glob(f"*/{FILE}")
        if (result := read_result(path.parent))
    }
    recipe = recipe_from(sweep.recipe_of(point), point.overrides)
    results = []
    for suite in sweep.suites:
        evaluator = evaluator_from(suite, recipe.threat)
        title = evaluator.suite.plan(recipe.threat).name if isinstance(evaluator, Attacked) else str(suite)
        results.append(found.get(title))
    known = [result for result in results if result is not None]
    return tuple(known) if len(known) == len(results) else None

"""A form of a table or figure: its sweep or its models, and what the results say about the claims."""

from pathlib import Path

from robustvit.core.errors import UserError, some_failed
from robustvit.core.finding import Finding, write_finding
from robustvit.core.result import Result
from robustvit.core.result_files import FILE, read_result
from robustvit.core.run import RunFolder
from robustvit.evaluation import Attacked, evaluator_from
from robustvit.models import fingerprint, load_model
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
        results = given_results(entry, entry.small, _folder(entry.small, root), quiet)
        return _compared(entry, entry.small, results, root)
    sweep = _sweep(entry.small)
    outcomes = run_sweep(sweep, _folder(entry.small, root), quiet)
    failed = [f"{point.folder}: {outcome}" for point, outcome in outcomes if isinstance(outcome, UserError)]
    if failed:
        raise some_failed(f"{entry.name}: {len(failed)} of {len(outcomes)} runs", failed)
    return _compared(entry, entry.small, swept_results(entry.small, sweep, outcomes), root)


def stored_findings(entry: Entry, root: Path) -> list[Finding]:
    """Of the sweeps at full scale of which every run was evaluated; nothing is run."""
    forms = () if entry.full is None else entry.full.stored
    return [found for form in forms if (found := _stored_finding(entry, form, root)) is not None]


def _stored_finding(entry: Entry, form: Small, root: Path) -> Finding | None:
    sweep = _sweep(form)
    outcomes = [(point, _stored(sweep, point, _folder(form, root))) for point in sweep.points()]
    known = [(point, results) for point, results in outcomes if results is not None]
    if len(known) < len(outcomes):
        return None
    return _compared(entry, form, swept_results(form, sweep, known), root)


def _sweep(form: Small) -> Sweep:
    assert form.sweep is not None
    return sweep_from(form.sweep, [])


def _folder(form: Small, root: Path) -> Path:
    return root / ("reproduce" if form.sweep is None else _sweep(form).name)


def finding_folder(entry: Entry, form: Small, root: Path) -> Path:
    """Where the comparisons of a form are kept."""
    return RunFolder(_folder(form, root)).analyses / entry.name.replace("/", "-")


def _compared(entry: Entry, form: Small, results: Results, root: Path) -> Finding:
    finding = entry_finding(entry, form, results)
    write_finding(finding_folder(entry, form, root), finding)
    return finding


def _stored(sweep: Sweep, point: Point, root: Path) -> tuple[Result, ...] | None:
    """A result for each suite, in their order; None while one of them is missing.

    A run may hold others of the same name: on fewer images, at another eps, of another checkpoint.
    """
    run, recipe = RunFolder(root / point.folder), recipe_from(sweep.recipe_of(point), point.overrides)
    found = [result for path in run.evaluations.glob(f"*/{FILE}") if (result := read_result(path.parent))]
    if not found:
        return None
    weights = fingerprint(load_model(run.path))
    results = []
    for suite in sweep.suites:
        evaluator = evaluator_from(suite, recipe.threat)
        title = evaluator.suite.plan(recipe.threat).name if isinstance(evaluator, Attacked) else str(suite)
        matching = [
            one
            for one in found
            if one.title == title
            and (one.threat is None or str(one.threat) == str(recipe.threat))
            and (one.num_images == sweep.images if sweep.images else one.provenance.images_rule.startswith("all "))
            and one.provenance.checkpoint["weights_sha256"] == weights
        ]
        if len(matching) > 1:
            folders = ", ".join(str(one.folder) for one in matching)
            raise UserError(f"{folders}: hold the same evaluation; remove all but one")
        results += matching
    return tuple(results) if len(results) == len(sweep.suites) else None

"""The page: values read from the files, arranged for the template."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from robustvit.core.run import RunFolder
from robustvit.reporting.advice import warnings
from robustvit.reporting.conditions import blocks, images_text
from robustvit.reporting.curves import eps_curve, learning_curves
from robustvit.reporting.findings import Shown, findings
from robustvit.reporting.pictures import Budget, galleries, in_turn
from robustvit.reporting.read import REPORT, Run, common_folder, finite, read_runs
from robustvit.reporting.scaling import scaling_plots
from robustvit.reporting.tables import (
    Group,
    Line,
    as_yaml,
    attack_lines,
    data_names,
    differences,
    expectations,
    groups,
    settings_text,
    total,
)
from robustvit.reporting.template import rendered, script, write_page


def report(
    runs: Sequence[str | Path], out: str | Path | None = None, *, scaling: bool = False, group: str | None = None
) -> Path:
    """Write the report on these run folders and return its path.

    Without `out`, it is `report.html` in the run folder, or in the folder around several. `scaling` adds plots of the
    error against the size of the models. `group` labels the runs for these plots, and is kept in their folders.
    """
    read = read_runs([runs] if isinstance(runs, str | Path) else runs)
    if group is not None:
        for run in read:
            RunFolder(run.path).write_group(group)
        read = [replace(run, group=group) for run in read]
    path = common_folder([run.path for run in read]) if out is None else Path(out)
    if path.is_dir():
        path = path / REPORT
    write_page(path, render(read, path.parent.resolve(), scaling))
    return path


def render(runs: Sequence[Run], folder: Path | None = None, scaling: bool = False) -> str:
    compared = groups(runs)
    names = data_names(runs)
    budget = Budget()
    # who spends first is shown first: figures of results, pictures of each run, findings, further pictures
    other = blocks(runs, names, budget)
    first, further = in_turn(compared)
    opened = galleries(first, budget, is_open=True)
    sweeps = _sweeps(runs, folder, budget)
    analyses = [(run.name, own) for run in runs if (own := list(findings(run.path, budget)))]
    shown = opened + galleries(further, budget, is_open=False)
    return rendered(
        "page.html",
        ("page.css",),
        {"interval": interval_text, "places": places, "yaml": as_yaml},
        title=title(runs),
        runs=runs,
        groups=compared,
        data_names=names,
        at_one_eps=[group for group in compared if not group.is_sweep],
        at_several_eps=[group for group in compared if group.is_sweep],
        lede=lede(compared),
        warnings=warnings(runs, compared),
        eps_curve=eps_curve,
        learning_curves=learning_curves,
        galleries=shown,
        galleries_left_out=len(first) + len(further) - len(shown),
        attack_lines=attack_lines,
        total=total,
        has_unverified=any(stage.num_unverified for run in runs for e in run.evaluations for stage in e.result.stages),
        differences=differences(runs),
        sweeps=sweeps,
        expectations=expectations(runs),
        scaling=scaling_plots(runs, names) if scaling else None,
        conditions=[block for block in other if block.has_conditions],
        other_results=[block for block in other if not block.has_conditions],
        images_text=images_text,
        findings=analyses,
        settings_text=settings_text,
        commands=commands,
        pending=[(number, run, said) for number, run in enumerate(runs, start=1) if (said := status(run))],
        **script("page.js"),
    )


def _sweeps(runs: Sequence[Run], folder: Path | None, budget: Budget) -> list[tuple[str, Shown]]:
    """Of the folder around several runs, or around one where the page lies."""
    around = {run.path.parent for run in runs if len(runs) > 1 or run.path.parent == folder}
    return [(path.name, shown) for path in around if len(around) == 1 for shown in findings(path, budget)]


def title(runs: Sequence[Run]) -> str:
    if len(runs) == 1:
        return runs[0].recipe_name or runs[0].name
    return " and ".join(run.name for run in runs) if len(runs) == 2 else f"{len(runs)} runs compared"


def lede(compared: Sequence[Group]) -> tuple[Line, int] | None:
    """The highest robust accuracy under the suite with the most attacks, of those tried at one eps; of how many.

    What was judged on a changed model isn't the robust accuracy of the model itself, and what a warning casts
    doubt on comes last.
    """
    for group in compared:
        first = group.lines[0].evaluation.result
        if first.stages and first.judges_original and len(group.eps) == 1:
            ranked = sorted(group.lines, key=lambda line: -line.evaluation.robust.value)
            return min(ranked, key=lambda line: line.evaluation.result.is_doubtful), len(group.lines)
    return None


def status(run: Run) -> str:
    """What has not happened yet, or nothing."""
    said = ""
    if not run.evaluations and run.recipe and not run.is_trained:
        steps = max((finite(row.get("total_step")) or 0 for row in run.metrics), default=0)
        said = f"in progress, {steps:,.0f} steps trained"
    elif not run.evaluations and (run.recipe or run.is_trained):  # else a folder of analyses, perhaps of images
        said = "trained, not evaluated yet" if run.is_trained else "not evaluated yet"
    return "; ".join(filter(None, [said, *(f"evaluation {name} is not finished" for name in run.unfinished)]))


def commands(run: Run) -> str:
    """What was typed to train and evaluate, a line each."""
    typed = [run.environment.get("command"), *(evaluation.result.provenance.command for evaluation in run.evaluations)]
    return "\n".join(dict.fromkeys(str(command) for command in typed if command))


def interval_text(interval: tuple[float, float] | None) -> str:
    return "" if interval is None else f"{100 * interval[0]:.1f} to {100 * interval[1]:.1f}"


def places(fraction: Any) -> str:
    """A fraction as a CSS length."""
    return f"{100 * fraction:.2f}%"

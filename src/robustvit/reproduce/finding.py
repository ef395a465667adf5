"""A table or figure with the paper's numbers and ours, as a finding."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict

from robustvit.core.errors import UserError
from robustvit.core.figures import Chart, Line, Table, percent
from robustvit.core.finding import Finding, interval_text
from robustvit.core.measure import Measure
from robustvit.core.numbers import counted
from robustvit.core.run import command
from robustvit.reproduce.compare import MEASURES, Compared, Outcomes, compared, level, printed
from robustvit.reproduce.entries import Entry, Seen, Small
from robustvit.reproduce.verdict import RULE
from robustvit.training.sweep_grid import Sweep

PAPER, OURS = "paper", "ours"


def entry_finding(entry: Entry, form: Small, sweep: Sweep, outcomes: Outcomes) -> Finding:
    """Raises where a run that it needs has failed."""
    done = [compared(entry, form, sweep, outcomes, comparison) for comparison in form.compare]
    suites = " and ".join(map(str, sweep.suites))
    result = next(outcome[0] for _, outcome in outcomes if not isinstance(outcome, UserError))
    how = f"{suites}, {counted(result.num_images, 'image')} of {result.provenance.data}, {_seeds(done)}"
    numbers = tuple(_number_rows(entry, form, sweep, outcomes))
    header = ("", "clean: paper", "ours", "95 %", f"robust: paper, {form.column}", "ours", "95 %")
    return Finding(
        f"{entry.title}: {entry.claim}",
        f"Ours: {how}.",
        tables=(Table("Accuracies", header, numbers),),
        charts=(_differences(done),),
        facts={
            "verdicts": [asdict(seen(one)) for one in done],
            "rule": RULE,
            "notes": list(form.notes),
            "sweep": form.sweep,
            "command": command(),
        },
    )


def seen(one: Compared) -> Seen:
    difference = one.difference
    return Seen(
        one.comparison.claim, difference.value, difference.interval, one.effect, one.verdict, one.seeds, one.images
    )


def points_text(fraction: float | None) -> str:
    """`+3.1`: percentage points."""
    return "not printed" if fraction is None else f"{100 * fraction:+.1f}"


def _seeds(done: Sequence[Compared]) -> str:
    fewest, most = (pick(one.seeds for one in done) for pick in (min, max))
    return counted(most, "seed") if fewest == most else f"{fewest} to {most} seeds"


def _number_rows(entry: Entry, form: Small, sweep: Sweep, outcomes: Outcomes) -> Iterator[tuple[str, ...]]:
    for name, arm in form.arms.items():
        theirs = printed(entry, form, arm)
        cells = [name]
        for measure in MEASURES:
            ours: Measure = level(sweep, outcomes, arm, measure)
            number = f"{theirs[measure]:g} %" if measure in theirs else ""
            cells += [number, percent(ours.value), interval_text(ours)]
        yield tuple(cells)


def _differences(done: Sequence[Compared]) -> Chart:
    rows, lines = tuple(one.comparison.label for one in done), []
    values = [one.difference for one in done]
    places = tuple(map(float, range(len(done))))
    intervals = tuple(one.interval or (one.value, one.value) for one in values)
    lines.append(Line(OURS, places, tuple(one.value for one in values), intervals))
    known = [(place, one.effect) for place, one in zip(places, done, strict=True) if one.effect is not None]
    if known:
        lines.append(Line(PAPER, tuple(place for place, _ in known), tuple(effect for _, effect in known)))
    note = "Whiskers: 95 % intervals over images and seeds. Right of 0 is the paper's side."
    return Chart("Differences of accuracy", "difference of accuracy", tuple(lines), True, "dots", rows, note=note)

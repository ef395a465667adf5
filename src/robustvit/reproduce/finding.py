"""A table or figure with the paper's numbers and ours, as a finding."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict

from robustvit.core.figures import Chart, Line, Table, percent
from robustvit.core.finding import Finding, interval_text
from robustvit.core.numbers import counted
from robustvit.core.result import Result
from robustvit.core.run import command
from robustvit.reproduce.compare import MEASURES, Compared, Results, Values, compared, level, printed
from robustvit.reproduce.entries import Entry, Seen, Small
from robustvit.reproduce.verdict import RULE

PAPER, OURS = "paper", "ours"


def entry_finding(entry: Entry, form: Small, results: Results) -> Finding:
    done = [compared(entry, form, results, comparison) for comparison in form.compare]
    every = [result for several in results.values() for result in several]
    suites, images, threats = (
        " and ".join(dict.fromkeys(texts))
        for texts in (
            [arm.suite or results[name][0].title for name, arm in form.arms.items()],
            map(_images, every),
            [str(one.threat) for one in every if isinstance(one, Result) and one.threat is not None],
        )
    )
    how = ", ".join(filter(None, (suites, threats, images, _seeds(done))))
    numbers = tuple(_number_rows(entry, form, results))
    is_accuracy = not any(arm.array for arm in form.arms.values())
    kind = "robust" if threats else "accuracy"  # under corruptions, lesions and the like, nothing attacks
    what = ", ".join(filter(None, (f"{kind}: paper", form.column))) if is_accuracy else f"{form.quantity}: paper"
    header = ("", *(("clean: paper", "ours", "95 %") if is_accuracy else ()), what, "ours", "95 %")
    return Finding(
        f"{entry.title}: {entry.claim}",
        f"Ours: {how}.",
        tables=(Table("Accuracies" if is_accuracy else "Means", header, numbers), *_search_costs(results)),
        charts=(_differences(done, form.quantity),),
        facts={
            "verdicts": [asdict(seen(form, results, one)) for one in done],
            "rule": RULE,
            "notes": [*form.notes, *_notes(results, results)],
            "runs": form.sweep or ", ".join(form.models),
            "command": command(),
        },
    )


def seen(form: Small, results: Results, one: Compared) -> Seen:
    difference = one.difference
    given = {form.arms[name].model: _digest(results[name][0]) for name in one.comparison.arms}
    return Seen(
        one.comparison.claim, difference.value, difference.interval, one.effect, one.verdict, one.seeds, one.images,
        len(one.comparison.ranked), tuple(f"{model}#{digest}" for model, digest in given.items() if model is not None),
        tuple(_notes(results, dict.fromkeys(one.comparison.arms))), one.comparison.ours,
    )  # fmt: skip


def _notes(results: Results, names: Iterable[str]) -> Iterator[str]:
    """Where a search ended at factors of 1, so that the attack that it scales is the plain one."""
    for name in names:
        found = [_is_unscaled(one) for one in results[name]]
        if any(found):
            where = "" if all(found) else f" for {sum(found)} of {counted(len(found), 'seed')}"
            yield f"{name}: the search found factors of 1{where}, which is the attack without scaling"


def _is_unscaled(one: Result | Values) -> bool:
    facts = one.details.get("attacks", ()) if isinstance(one, Result) else ()
    searches = [search for fact in facts for search in fact.get("searches", ())]
    return bool(searches) and all(abs(factor - 1) < 0.01 for search in searches for factor in search["factors"])


def _digest(one: Result | Values) -> str:
    """Eight digits of the fingerprint of the weights."""
    return one.digest if isinstance(one, Values) else str(one.provenance.checkpoint["weights_sha256"])[:8]


def points_text(value: float | None, ranked: int = 0) -> str:
    """`+3.1`: percentage points; of a rank correlation, itself."""
    if value is None:
        return "not printed"
    return f"{value:+.2f}" if ranked else f"{100 * value:+.1f}"


def seen_text(one: Seen) -> str:
    """`-3.0 points, -14.9 to +9.0 over 360 images and 3 seeds`."""
    value, *ends = (points_text(number, one.ranked) for number in (one.difference, *(one.interval or ())))
    said = [
        f"a rank correlation of {value}" if one.ranked else f"{value} points",
        *([" to ".join(ends)] if ends else []),
    ]
    times = counted(one.ranked, "model") if one.ranked else counted(one.seeds, "seed")
    return f"{', '.join(said)} over {counted(one.images, 'image')} and {times}"


def _images(one: Result | Values) -> str:
    count, data = (len(one.of_images), one.data) if isinstance(one, Values) else (one.num_images, one.provenance.data)
    return f"{counted(count, 'image')} of {data}"


def _seeds(done: Sequence[Compared]) -> str:
    """Of given models, one: another training could end elsewhere."""
    fewest, most = (pick(one.seeds for one in done) for pick in (min, max))
    if most == 1:
        return "one seed: intervals are over images alone, and another training may differ by more"
    return counted(most, "seed") if fewest == most else f"{fewest} to {most} seeds"


def _number_rows(entry: Entry, form: Small, results: Results) -> Iterator[tuple[str, ...]]:
    for name, arm in form.arms.items():
        theirs = printed(entry, form, arm)
        cells = [name]
        for measure in MEASURES if not arm.array else MEASURES[1:]:
            ours = level(form, results, name, measure)
            number = f"{theirs[measure]:g} %" if measure in theirs else ""
            cells += [number, *(("", "") if ours is None else (percent(ours.value), interval_text(ours)))]
        yield tuple(cells)


def _search_costs(results: Results) -> Iterator[Table]:
    """Of arms that searched for something before they attacked; passes count images, forward and backward."""
    rows = []
    for name, arm in results.items():
        several = [result for result in arm if isinstance(result, Result)]
        facts = [fact for result in several for fact in result.details.get("attacks", ())]
        searched = sum(search["passes"] for fact in facts for search in fact.get("searches", ()))
        attacked = sum(stage.passes for result in several for stage in result.stages)
        if searched and attacked:
            rows.append((name, f"{searched:,.0f}", f"{attacked:,.0f}", percent(searched / attacked)))
    if rows:
        yield Table("Cost of the search", ("", "passes of the search", "of the attack", "fraction"), tuple(rows))


def _differences(done: Sequence[Compared], quantity: str) -> Chart:
    rows, lines = tuple(one.comparison.label for one in done), []
    values = [one.difference for one in done]
    places = tuple(map(float, range(len(done))))
    intervals = tuple(one.interval or (one.value, one.value) for one in values)
    lines.append(Line(OURS, places, tuple(one.value for one in values), intervals))
    known = [(place, one.effect) for place, one in zip(places, done, strict=True) if one.effect is not None]
    if known:
        lines.append(Line(PAPER, tuple(place for place, _ in known), tuple(effect for _, effect in known)))
    if done[0].comparison.ranked:
        note = "Whiskers hold 0 unless at most 5 % of all orders of the models are as far from it; of four, none are."
        return Chart(
            "Rank correlations with clean accuracy", "rank correlation", tuple(lines), kind="dots", rows=rows, note=note
        )
    note = "Whiskers: 95 % intervals over images and seeds."
    if all(one.comparison.claimed for one in done):
        note += " Right of 0 is the paper's side."
    return Chart(f"Differences of {quantity}", f"difference of {quantity}", tuple(lines), True, "dots", rows, note=note)

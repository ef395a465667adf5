"""Warnings about the numbers of a page, and what to do about each."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from robustvit.core.result import ResultWarning
from robustvit.reporting.read import Run, finite
from robustvit.reporting.tables import Group


@dataclass(frozen=True)
class ShownWarning:
    """One name and advice, with every place where it holds."""

    text: str
    advice: str
    places: tuple[str, ...]

    def __str__(self) -> str:
        """In a line, with the place where it is a single one."""
        place = f" ({self.places[0]})" if len(self.places) == 1 else ""
        return f"{self.text}{place}. {self.advice}".strip()


def warnings(runs: Sequence[Run], groups: Sequence[Group]) -> list[ShownWarning]:
    """Everything that a reader of the numbers should know."""
    return merged([*_of_runs(runs), *_rising(groups)])


def merged(noticed: Iterable[tuple[ResultWarning, str]]) -> list[ShownWarning]:
    """Warnings and where each holds: every name once, with all its places."""
    by_name: dict[str, dict[ResultWarning, list[str]]] = {}
    for warning, place in noticed:
        by_name.setdefault(warning.name, {}).setdefault(warning, []).append(place)
    return [_merged(name, places) for name, places in by_name.items()]


def _merged(name: str, places: dict[ResultWarning, list[str]]) -> ShownWarning:
    """Warnings of one name differ in what was observed: one entry, and each place with its figures."""
    (first, where), *others = places.items()
    advice = first.advice[:1].upper() + first.advice[1:]
    advice += "" if advice.endswith((".", "?")) or not advice else "."
    if not others:
        return ShownWarning(f"{name}: {first.observation}", advice, tuple(where))
    seen = tuple(f"{place}: {warning.observation}" for warning, several in places.items() for place in several)
    return ShownWarning(f"{name}, {len(seen)} times", advice, seen)


def _of_runs(runs: Sequence[Run]) -> Iterator[tuple[ResultWarning, str]]:
    not_finite = "lower the learning rate, set clip_norm, or let eps grow more slowly (eps_schedule)"
    for run in runs:
        broken = sum("loss" in row and finite(row["loss"]) is None for row in run.metrics)
        if broken:
            observation = f"the training loss was not finite in {broken} rows of metrics.jsonl"
            yield ResultWarning("loss-not-finite", observation, not_finite), run.name
        counts = {str(row.get("phase")): row["skipped_steps"] for row in run.metrics if "skipped_steps" in row}
        skipped = sum(finite(count) or 0 for count in counts.values())
        if skipped:
            observation = f"{skipped:.0f} training steps were skipped: their loss or gradient was not finite"
            yield ResultWarning("skipped-steps", observation, not_finite), run.name
        for row in run.metrics:
            if row.get("kind") == "warning":
                name, observation, advice = (str(row.get(key, "")) for key in ("name", "observation", "advice"))
                yield ResultWarning(name, observation, advice), run.name
        for evaluation in run.evaluations:
            place = ", ".join(map(str, filter(None, (run.name, evaluation.result.suite, evaluation.result.threat))))
            yield from ((warning, place) for warning in evaluation.warnings)


def _rising(groups: Sequence[Group]) -> Iterator[tuple[ResultWarning, str]]:
    """A larger ball holds the smaller one's adversarial images: more accuracy in it only shows a weak search."""
    advice = "the search gets stuck, perhaps on masked gradients: evaluate with --suite autoattack"
    for group in groups:
        seen: dict[tuple[int, str], float] = {}
        for line in group.lines:
            result, model = line.evaluation.result, (line.run_number, line.evaluation.weights)
            value, interval = result.headline.value, result.headline.interval
            if result.stages and value > seen.get(model, 1.0):
                place = f"{line.run.name}, {result.suite}, up to {result.threat}"
                yield ResultWarning("accuracy-rises-with-eps", "robust accuracy rises with eps", advice), place
            seen[model] = min(seen.get(model, 1.0), interval[1] if interval else value)

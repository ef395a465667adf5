"""Warnings about the numbers of a page, and what to do about each."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from robustvit.reporting.read import Run, finite
from robustvit.reporting.tables import Group

ADVICE = {
    "did not stand the re-check": "Take the accuracy as an upper bound, and look for low precision or randomness in "
    "the model, or for an attack that leaves its ball.",
    "logits that aren't finite": "Look for overflow in the model (half precision, a missing normalisation): no attack "
    "learns anything from such images.",
    "was not finite": "Lower the learning rate, set clip_norm, or let eps grow more slowly (eps_schedule).",
    "several sessions that differ": "For numbers to publish, evaluate anew in one session, into another run folder.",
    "that it was trained on": "Conclude nothing about new images; evaluate data with a test split (--data).",
    "margin loss instead of DLR": "Compare only with results on as few classes.",
    "targeted stages have": "Compare only with results on as few classes.",
    "no pictures of this evaluation": "To have them, evaluate into another run folder.",
    "rises with eps": "The search gets stuck, perhaps on masked gradients: evaluate with --suite autoattack.",
}
"""By words that the warning holds."""


@dataclass(frozen=True)
class Warned:
    what: str
    advice: str
    places: tuple[str, ...]


def warnings(runs: Sequence[Run], groups: Sequence[Group]) -> list[Warned]:
    """Everything that a reader of the numbers should know, each once with all the places where it holds."""
    places: dict[str, list[str]] = {}
    for what, place in [*_of_files(runs), *_rising(groups)]:
        places.setdefault(what, []).append(place)
    return _merged([Warned(*_split(what), tuple(where)) for what, where in places.items()])


def _merged(found: Sequence[Warned]) -> list[Warned]:
    """Warnings of one name differ in what was seen, not in what to do: one entry, and each place with its figures."""
    by_name: dict[str, list[Warned]] = {}
    for one in found:
        name, colon, _ = one.what.partition(": ")
        by_name.setdefault(name if colon and " " not in name else one.what, []).append(one)
    merged = []
    for name, same in by_name.items():
        if len(same) == 1:
            merged += same
            continue
        seen = tuple(f"{place}: {one.what.partition(': ')[2]}" for one in same for place in one.places)
        merged.append(Warned(f"{name}, {len(seen)} times", same[0].advice, seen))
    return merged


def _split(text: str) -> tuple[str, str]:
    """A warning and its advice: ours, or its own after the semicolon."""
    known = next((advice for words, advice in ADVICE.items() if words in text), None)
    if known is not None:
        return text, known
    what, _, own = text.partition("; ")
    return what, f"{own[:1].upper()}{own[1:]}{'' if own[-1] in '.?' else '.'}" if own else ""


def _of_files(runs: Sequence[Run]) -> Iterator[tuple[str, str]]:
    for run in runs:
        broken = sum("loss" in row and finite(row["loss"]) is None for row in run.metrics)
        if broken:
            yield f"the training loss was not finite in {broken} rows of metrics.jsonl", run.name
        counts = {str(row.get("phase")): row["skipped_steps"] for row in run.metrics if "skipped_steps" in row}
        skipped = sum(finite(count) or 0 for count in counts.values())
        if skipped:
            yield f"{skipped:.0f} training steps were skipped: their loss or gradient was not finite", run.name
        for row in run.metrics:
            if row.get("kind") == "warning":
                yield f"{row.get('text')}", run.name
        for evaluation in run.evaluations:
            for what in evaluation.warnings:
                yield what, f"{run.name}, {evaluation.suite}, {evaluation.threat}"


def _rising(groups: Sequence[Group]) -> Iterator[tuple[str, str]]:
    """A larger ball holds the smaller one's adversarial images: more accuracy in it only shows a weak search."""
    for group in groups:
        seen: dict[tuple[int, str], float] = {}
        for line in group.lines:
            found, model = line.evaluation, (line.run_number, line.evaluation.weights)
            if found.stages and found.robust_accuracy > seen.get(model, 1.0):
                yield "robust accuracy rises with eps", f"{line.run.name}, {found.suite}, up to {found.threat}"
            seen[model] = min(seen.get(model, 1.0), found.interval[1])

"""Every table and figure in a few lines: how it is run, what it needs, and what was seen."""

import shlex
from collections.abc import Iterator
from itertools import pairwise

from robustvit.core.config import load_recipe, load_sweep
from robustvit.core.recipe_info import info_of
from robustvit.reproduce.entries import Entry, Full, Small, seen_by_us


def lines_of(entry: Entry) -> Iterator[str]:
    yield f"{entry.name}  {entry.claim}"
    if entry.full is None:
        yield f"    full   {entry.no_full}"
    else:
        for command in commands_of(entry.full):
            yield f"    full   {command}"
        for need in needs_of(entry):
            yield f"    needs  {need}"
    for command in entry.small.prepare if entry.small is not None else ():
        yield f"    first  {command}"
    yield f"    small  {entry.no_small if entry.small is None else small_text(entry.name, entry.small)}"
    if entry.small is not None:
        for need in small_needs(entry.small):
            yield f"    with   {need}"
        yield f"    run    {run_text(entry)}"


def commands_of(full: Full) -> list[str]:
    first = [f"robustvit train {name}" for name in full.first]
    trained = [f"{shlex.join(full.training(name))}; {full.evaluation('RUN')}" for name in full.recipes]
    return [*first, *(f"robustvit sweep {name}" for name in full.sweeps), *trained, *full.commands]


def small_text(name: str, small: Small) -> str:
    what = small.sweep or ", ".join(small.models) or f"{len(small.commands)} commands without a verdict"
    return f"robustvit reproduce {name} ({', '.join(filter(None, (what, small.time)))})"


def small_needs(small: Small) -> list[str]:
    """Data that the package does not hold; what the runs start from is made first."""
    if small.sweep is not None:
        sweep = load_sweep(small.sweep)
        trees = (sweep, load_recipe(sweep["recipe"]))
        return [need for tree in trees for what, need in info_of(tree).needs.items() if what != "weights"]
    words = [word for command in small.commands for word in shlex.split(command)]
    data = [after for word, after in pairwise(words) if word == "--data"]
    names = [small.given.data] if small.given is not None else dict.fromkeys(data)
    return [f"the data {name} below ROBUSTVIT_DATA" for name in names]


def run_text(entry: Entry) -> str:
    """What this project saw of it: a verdict for each comparison, or a text where there is none."""
    seen = seen_by_us().get(entry.name, ())
    if isinstance(seen, str):
        return seen
    return ", ".join(f"{one.claim}: {one.verdict}" for one in seen) or "not yet"


def needs_of(entry: Entry) -> list[str]:
    """Of the recipes at full scale, and what the entry itself adds; each once."""
    assert entry.full is not None
    names = [*entry.full.first, *entry.full.recipes]
    for name in entry.full.sweeps:
        sweep = load_sweep(name)
        cases = [case["recipe"] for case in sweep.get("cases", ()) if "recipe" in case]
        names += cases or [sweep["recipe"]]
    needs = [need for name in names for need in info_of(load_recipe(name)).needs.values()]
    return list(dict.fromkeys([*needs, *entry.needs]))

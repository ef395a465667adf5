"""From a plan to a card: every row an ordinary evaluation in the run folder of its model, then one page."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from robustvit.cards.opening import plan_card, with_names
from robustvit.cards.plan import Candidate, CardPlan, Options
from robustvit.cards.preset import load_preset
from robustvit.core.card import CardFile, CardModel, CardRow, write_card
from robustvit.core.errors import UserError, check_counts
from robustvit.core.progress import part_of, say
from robustvit.core.result import ResultWarning
from robustvit.core.world import World
from robustvit.data.base import Split
from robustvit.evaluation.engine import Job, evaluate_subject
from robustvit.evaluation.given import resolve_given
from robustvit.models.reference import ModelRef, resolve_model
from robustvit.reporting import Card, open_card
from robustvit.reporting.read import common_folder
from robustvit.threats import LpBall

Model = str | Path | nn.Module | ModelRef


def card(
    models: Model | Sequence[Model] | Mapping[str, Model],
    data: Any = None,
    *,
    preset: str | Path = "quick",
    threat: LpBall | None = None,
    run: str | Path | None = None,
    head: str | None = None,
    paths: Mapping[str, str | Path] | None = None,
    images: int | None = None,
    split: Split = "test",
    seed: int = 0,
    batch_size: int | None = None,
    device: str = "auto",
    processes: int | None = 1,
    quiet: bool = False,
) -> Card:
    """Evaluate models by a preset and write their robustness card, `card.html`; what is there is not computed again.

    `models`, `data`, `threat` and `head` are those of `evaluate`; several models are a list, or a map with their names,
    all judged through this head. Results go into `run`, default: each model's own run folder.
    `paths` say where suites such as `imagenet-r` find their images; `images` is the largest number in a row.
    """
    check_counts(images=1 if images is None else images, processes=1 if processes is None else processes)
    candidates = _candidates(models, data, threat, run, head)
    given = {name: Path(path) for name, path in (paths or {}).items()}
    options = Options(given, images, split, seed, batch_size, device, processes, quiet, threat)
    plan = plan_card(with_names(candidates), Path(preset).stem, load_preset(preset), options)
    if not quiet:
        say(plan.text())
    made = make_card(plan)
    assert made is not None, "this is the only process"
    return made


def _candidates(
    models: Any, data: Any, threat: LpBall | None, run: str | Path | None, head: str | None
) -> list[Candidate]:
    if not isinstance(models, Mapping):
        several = [models] if isinstance(models, str | Path | nn.Module | ModelRef) else list(models)
        return [candidate(resolve_model(model), data, threat, run, head) for model in several]
    if not all(isinstance(name, str) and name for name in models):
        raise UserError(f"models: names are text, not {list(models)}")
    made = {name: candidate(resolve_model(model), data, threat, run, head) for name, model in models.items()}
    return [replace(one, name=name) for name, one in made.items()]


def candidate(
    ref: ModelRef,
    data: Any,
    threat: LpBall | None,
    run: str | Path | None,
    head: str | None = None,
    warnings: Sequence[ResultWarning] = (),
) -> Candidate:
    """A model through one of its heads, with the data and the threat of its run for what is None."""
    given = resolve_given(ref, data, threat, head)
    recipe = str((ref.recipe or {}).get("name") or ref.checkpoint.get("recipe") or "")
    folder = ref.folder if run is None else Path(run)
    noticed = (*warnings, *given.warnings)
    key = f"{ref.source}#{ref.digest}" if ref.file is None else str(ref.file.resolve())
    return Candidate(
        ref.title, ref.source, given.model, given.data, folder, given.threat, recipe, given.checkpoint, noticed, key
    )


def make_card(plan: CardPlan, world: World = World()) -> Card | None:  # noqa: B008
    """Compute what is missing, and write the card's file and page; processes of a `world` but the first return None."""
    folder, todo = _common_folder(plan), plan.todo
    folders: dict[tuple[str, str], str] = {}
    for row in plan.rows:
        if row.subject is None or row.evaluator is None:
            continue
        one, quiet = row.candidate, plan.options.quiet
        number = f"{todo.index(row) + 1} of {len(todo)}, " if row in todo else ""
        of = f"{one.name}, " if len(plan.candidates) > 1 else ""
        job = Job(one.folder, plan.options.processes, checkpoint=one.checkpoint, warnings=one.warnings)
        with part_of("" if quiet else f"{number}{of}{row.row.name}"):
            result = evaluate_subject(row.subject, row.evaluator, job, world)
        assert result.folder is not None, "the job has a run folder"
        folders[one.name, row.row.name] = result.folder
    if not world.is_first:
        return None
    write_card(folder, _file(plan, folders, folder))
    return open_card(folder)


def _common_folder(plan: CardPlan) -> Path:
    folder = common_folder([one.folder for one in plan.candidates])
    if folder == Path(folder.anchor):
        raise UserError("the run folders have nothing in common; say where the card goes: --run FOLDER")
    return folder


def _file(plan: CardPlan, folders: Mapping[tuple[str, str], str], folder: Path) -> CardFile:
    rows = {row.row.name: CardRow(row.row.name, row.row.lines) for row in plan.rows}
    models = []
    for one in plan.candidates:
        found = {name: place for (model, name), place in folders.items() if model == one.name}
        results = {name: os.path.relpath(place, folder) for name, place in found.items()}
        missing = {row.row.name: row.missing for row in plan.rows if row.candidate is one and row.missing}
        models.append(CardModel(one.name, one.source, one.recipe, results, missing))
    return CardFile(plan.preset, plan.about, tuple(rows.values()), tuple(models))

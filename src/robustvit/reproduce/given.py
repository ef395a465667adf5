"""Arms that are given models, such as those of the zoo: evaluated or analyzed as they are, each in its run folder."""

import re
from pathlib import Path

import numpy as np

from robustvit.analysis import analyze
from robustvit.core.component import registered
from robustvit.core.errors import UserError, nearest
from robustvit.core.finding import Finding, results_of
from robustvit.core.result import Result
from robustvit.core.result_files import control_of
from robustvit.data.open import images_from
from robustvit.evaluation import evaluate, evaluator_from
from robustvit.evaluation.suite_names import settings_after_colon
from robustvit.models import fingerprint, load_model, resolve_model
from robustvit.reproduce.compare import Values
from robustvit.reproduce.entries import Arm, Entry, Given, Small
from robustvit.threats import LpBall


def given_results(entry: Entry, form: Small, root: Path, quiet: bool = False) -> dict[str, list[Result | Values]]:
    """By arm; data and models that aren't there are named before anything is computed."""
    assert form.given is not None
    _check(entry, form, form.given)
    known: dict[tuple[object, ...], Result | Values] = {}
    results = {}
    for name, arm in form.arms.items():
        question = (arm.model, arm.suite, arm.eps, arm.array)
        if question not in known:
            known[question] = _result(form.given, arm, root, quiet)
        found: Result | Values | None = known[question]
        if arm.control:
            found = control_of(found) if isinstance(found, Result) else None
        if found is None:
            raise UserError(f"{entry.name}: arm '{name}': {arm.suite} has no control; only a search has one")
        results[name] = [found]
    return results


def _check(entry: Entry, form: Small, given: Given) -> None:
    try:
        held = len(images_from(given.data, "test"))
    except UserError as error:
        raise UserError(f"{entry.name}: {error}") from None
    if held < given.images:
        raise UserError(f"{entry.name}: {given.data} holds {held:,} test images, where {given.images:,} are compared")
    for name, arm in form.arms.items():
        try:
            resolve_model(str(arm.model))
            if arm.array and not _is_analysis(arm):
                raise UserError(f"array: {arm.suite} is no analysis; only these keep arrays")
            if not _is_analysis(arm):
                evaluator_from(arm.suite, _threat(given, arm))
        except UserError as error:
            raise UserError(f"{entry.name}: arm '{name}': {error}") from None


def _result(given: Given, arm: Arm, root: Path, quiet: bool) -> Result | Values:
    """Of one model under one suite; of an analysis, one of its arrays or the accuracies that it was made of."""
    model, suite = str(arm.model), str(arm.suite)
    run, threat = root / re.sub(r"[^A-Za-z0-9.=_-]+", "-", model), _threat(given, arm)
    if not _is_analysis(arm):
        return evaluate(model, given.data, suite=suite, threat=threat, run=run, images=given.images, quiet=quiet)
    what = {"name": suite.partition(":")[0], **settings_after_colon(suite)}
    (finding,) = analyze(model, given.data, what=what, threat=threat, run=run, images=given.images, quiet=quiet)
    if arm.array:
        of_images = array_of(finding, arm.array, given.images)
        return Values(finding.title, given.data, of_images, fingerprint(load_model(model))[:8])
    results = results_of(finding)
    if len(results) != 1:
        raise UserError(f"{suite}: an analysis of accuracy under conditions makes one result, not {len(results)}")
    return results[0]


def array_of(finding: Finding, where: str, images: int) -> np.ndarray:
    """(images,) of one of its arrays, such as `hits/0/*`."""
    name, *places = where.split("/")
    if name not in finding.arrays:
        raise UserError(f"{finding.title}: no array '{name}'{nearest(name, list(finding.arrays))}")
    array = np.asarray(finding.arrays[name], dtype=np.float64)
    fits = len(places) == array.ndim - 1 and array.shape[-1:] == (images,)
    try:
        chosen = array[tuple(slice(None) if place == "*" else int(place) for place in places)] if fits else None
    except (ValueError, IndexError):
        chosen = None
    if chosen is None:
        raise UserError(f"{finding.title}: {where}: the array has the shape {array.shape}, images on the last axis")
    return np.asarray(chosen.reshape(-1, images).mean(0))


def _is_analysis(arm: Arm) -> bool:
    return str(arm.suite).partition(":")[0] in registered("analysis")


def _threat(given: Given, arm: Arm) -> LpBall:
    return LpBall("inf", given.eps if arm.eps is None else arm.eps)

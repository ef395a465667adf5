"""Arms that are given models, such as those of the zoo: evaluated or analyzed as they are, each in its run folder."""

import re
from pathlib import Path

from robustvit.analysis import analyze
from robustvit.core.component import registered
from robustvit.core.errors import UserError
from robustvit.core.finding import results_of
from robustvit.core.result import Result
from robustvit.data.open import images_from
from robustvit.evaluation import evaluate, evaluator_from
from robustvit.evaluation.suite_names import settings_after_colon
from robustvit.models import resolve_model
from robustvit.reproduce.entries import Arm, Entry, Given, Small
from robustvit.threats import LpBall


def given_results(entry: Entry, form: Small, root: Path, quiet: bool = False) -> dict[str, list[Result]]:
    """By arm; data and models that aren't there are named before anything is computed."""
    assert form.given is not None
    _check(entry, form, form.given)
    known: dict[tuple[object, ...], Result] = {}
    results = {}
    for name, arm in form.arms.items():
        question = (arm.model, arm.suite, arm.eps)
        if question not in known:
            known[question] = _result(form.given, arm, root, quiet)
        found = known[question].control_result if arm.control else known[question]
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
            if not _is_analysis(arm):
                evaluator_from(arm.suite, _threat(given, arm))
        except UserError as error:
            raise UserError(f"{entry.name}: arm '{name}': {error}") from None


def _result(given: Given, arm: Arm, root: Path, quiet: bool) -> Result:
    """Of one model under one suite; of an analysis, the accuracies that its finding was made of."""
    model, suite = str(arm.model), str(arm.suite)
    run, threat = root / re.sub(r"[^A-Za-z0-9.=_-]+", "-", model), _threat(given, arm)
    if not _is_analysis(arm):
        return evaluate(model, given.data, suite=suite, threat=threat, run=run, images=given.images, quiet=quiet)
    what = {"name": suite.partition(":")[0], **settings_after_colon(suite)}
    (finding,) = analyze(model, given.data, what=what, threat=threat, run=run, images=given.images, quiet=quiet)
    results = results_of(finding)
    if len(results) != 1:
        raise UserError(f"{suite}: an analysis of accuracy under conditions makes one result, not {len(results)}")
    return results[0]


def _is_analysis(arm: Arm) -> bool:
    return str(arm.suite).partition(":")[0] in registered("analysis")


def _threat(given: Given, arm: Arm) -> LpBall:
    return LpBall("inf", given.eps if arm.eps is None else arm.eps)

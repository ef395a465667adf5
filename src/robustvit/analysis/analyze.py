"""Models and data in, findings out, each a folder below the run; what is there already isn't done again."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from robustvit.analysis.base import CLEAN, Analysis as Analysis, Case
from robustvit.analysis.plan import Refusals, planned, store_of
from robustvit.attacks.base import Classifier
from robustvit.core.component import build, explaining, registered, to_dict
from robustvit.core.errors import UserError, check_counts
from robustvit.core.files import hash8, is_file, locked
from robustvit.core.finding import FIGURES, FILE, Finding, read_finding, write_finding
from robustvit.core.merging import merged
from robustvit.core.progress import part_of, say
from robustvit.core.run import RunFolder, command, versions
from robustvit.data.base import Split
from robustvit.data.open import images_from
from robustvit.evaluation.attacked_images import AttackOnImages
from robustvit.evaluation.given import resolve_given
from robustvit.evaluation.subject import Subject, open_subject
from robustvit.evaluation.suite import suite_from
from robustvit.models import ModelRef, resolve_model
from robustvit.models.heads import through
from robustvit.models.reference import distinct_titles
from robustvit.threats import LpBall

IMAGES = 256
"""At most, unless the caller says otherwise; the papers take 4,096."""
ALL = "all"


def analyze(
    model: Classifier | str | Path | ModelRef,
    data: Any = None,
    *,
    what: Any,
    compare: Sequence[Any] | Mapping[str, Any] = (),
    on: Any = CLEAN,
    threat: LpBall | None = None,
    head: str | None = None,
    run: str | Path | None = None,
    split: Split = "test",
    images: int | None = IMAGES,
    seed: int = 0,
    batch_size: int | None = None,
    device: str = "auto",
    quiet: bool = False,
    plan_only: bool = False,
) -> list[Finding]:
    """Findings about a model of pixels in [0, 1]: `what` names analyses, or holds them; "all" are those that fit, with
    the settings of those that are listed next to it.

    `model`, `data` and `head` are those of `evaluate`. Models in `compare` are looked at on the same images, through
    the same head, and shown in the same pictures. `on` names a suite, or several: its adversarial images of each model
    are looked at instead of the "clean" ones. With `run`, everything is kept in its `analysis` folder, where the report
    finds it, with the figures as SVG files (and PNG where cairosvg is installed); killed at any moment, the same call
    resumes. `images`: at most so many, chosen by the seed; None: all. With `plan_only`, the cost is printed and nothing
    is made.
    """
    check_counts(batch_size=1 if batch_size is None else batch_size)
    several = [what] if isinstance(what, str | Mapping) or not isinstance(what, Sequence) else list(what)
    if not several:
        raise UserError("what: at least one analysis; robustvit list shows them")
    given = resolve_given(model, data, threat, head)
    is_all = ALL in several
    if is_all:
        own = {_name_of(one): one for one in several if one != ALL}
        several = [*(own.pop(name, name) for name in registered("analysis")), *own.values()]
    wanted = [_built(one, given.threat) for one in several]
    opened = images_from(given.data, split)
    options: dict[str, Any] = {"split": split, "seed": seed, "batch_size": batch_size, "device": device}
    if images is not None:
        check_counts(images=images)
        options["images"] = min(images, len(opened))
    root = None if run is None else RunFolder(Path(run)).analyses
    with ExitStack() as stack:
        subjects = {
            name: stack.enter_context(replace(open_subject(one, opened, quiet=quiet, **options), run=of).ready())
            for name, (one, of) in _named(model, given.model, compare, head).items()
        }
        cases = list(_cases(subjects, on, given.threat))
        refusals = Refusals(wanted, cases)
        refusals.check(is_all)
        plan = planned(wanted, cases, root, refusals)
        if not quiet:
            say(plan.text())
        return [] if plan_only else list(_findings(wanted, cases, root, refusals, is_all))


def _named(
    model: Any, module: Classifier, compare: Sequence[Any] | Mapping[str, Any], head: str | None
) -> dict[str, tuple[Classifier, RunFolder | None]]:
    """Models by name with their runs, the first of them the one that was asked for."""
    if isinstance(compare, str | Path) or not isinstance(compare, Sequence | Mapping):
        raise UserError(f"compare: a list of models, or models by name, not {compare!r}")
    if not compare:
        return {"": (module, resolve_model(model).run if isinstance(model, str | Path | ModelRef) else None)}
    if not isinstance(model, str | Path | ModelRef | nn.Module):
        raise UserError("compare: models are compared that have a name or are an nn.Module, not bare callables")
    first, others = resolve_model(model), compare.values() if isinstance(compare, Mapping) else compare
    refs = [resolve_model(one) for one in others]
    if len({first, *refs}) <= len(refs):
        raise UserError(f"compare: a model is given twice: {', '.join(map(str, (first, *refs)))}")
    titles = distinct_titles([first, *refs])
    names = [titles[0], *compare] if isinstance(compare, Mapping) else titles
    if len(set(names)) < len(names):
        raise UserError(f"compare: '{titles[0]}' is the name of the first model; give the other one another name")
    models: tuple[Classifier, ...] = (module, *(through(ref.module(), head) for ref in refs))
    runs = (ref.run for ref in (first, *refs))
    return dict(zip(names, zip(models, runs, strict=True), strict=True))


def _cases(subjects: Mapping[str, Subject], on: Any, threat: LpBall | None) -> Iterator[Case]:
    kinds = [on] if isinstance(on, str | Mapping) or not isinstance(on, Sequence) else list(on)
    if not kinds or len({str(kind) for kind in kinds}) < len(kinds):
        raise UserError(f"on: '{CLEAN}' or suites such as pgd-20, each once, not {kinds}")
    for name, subject in subjects.items():
        for kind in kinds:
            if kind == CLEAN:
                yield Case(name, CLEAN, subject)
                continue
            if threat is None or not threat.eps:
                raise UserError(f"on {kind}: an attack needs a threat, such as rv.LpBall('inf', 8 / 255)")
            attack = AttackOnImages(subject, suite_from(kind), threat)
            yield Case(name, attack.evaluation.plan.name, subject, attack)


def _findings(
    wanted: Sequence[Any], cases: Sequence[Case], root: Path | None, refusals: Refusals, is_all: bool
) -> Iterator[Finding]:
    several_models, several_on = (len({getattr(case, name) for case in cases}) > 1 for name in ("model", "on"))
    attacked: dict[int, Subject] = {}
    fitting = [(analysis, own) for analysis in wanted if (own := [c for c in cases if not refusals.of(analysis, c)])]
    for number, (analysis, own) in enumerate(fitting, start=1):
        found: dict[str, tuple[Finding, Path | None]] = {}
        for case in own:
            words = [word for word, is_shown in ((case.model, several_models), (case.on, several_on)) if is_shown]
            try:
                with part_of(", ".join([f"{number}/{len(fitting)} {analysis.name}", *words])):
                    found[", ".join(words)] = _analyzed(analysis, case, root, attacked)
            except UserError as error:  # what only all images tell, such as that none is right under an attack
                if not is_all:
                    raise
                say(f"left out: {', '.join([analysis.name, *words])}: {error}")
        header = "model" if not several_on else "images" if not several_models else "model, images"
        if found:
            yield _together(analysis.name, found, header, root)


def _analyzed(
    analysis: Any, case: Case, root: Path | None, attacked: dict[int, Subject]
) -> tuple[Finding, Path | None]:
    """The finding of one case, and its folder; `attacked` has the subjects on adversarial images made so far."""
    store = store_of(analysis, case, root)
    with store.lock("analyzing"):
        if store.folder is not None and is_file(store.folder / FILE):
            return read_finding(store.folder), store.folder
        subject = case.subject
        if case.attack is not None:
            if id(case) not in attacked:
                attacked[id(case)] = case.attack(root)
            subject = attacked[id(case)]
        facts = {
            **case.identity(analysis, to_dict(analysis)),
            "model": case.subject.fingerprint(),
            "seed": subject.seed,
            "images": subject.images_rule,
            "data": subject.images.title,
            "versions": versions(),
            "command": command(),
        }
        finding: Finding = replace(analysis(subject, store), facts=facts)
        if store.folder is not None:
            _write(store.folder, finding)
            finding = replace(finding, folder=str(store.folder))
        return finding, store.folder


def _together(name: str, found: Mapping[str, tuple[Finding, Path | None]], header: str, root: Path | None) -> Finding:
    """The only finding, or one of all cases, which names the folders that it is made of."""
    whole = merged({title: finding for title, (finding, _) in found.items()}, header)
    folders = [folder.name for _, folder in found.values() if folder is not None]
    if len(found) == 1 or root is None:
        return whole
    whole = replace(whole, facts={**whole.facts, "command": command(), "combines": folders})
    folder = root / f"{name}-compared-{hash8([list(found), folders])}"
    with locked(folder / ".lock", "analyzing"):
        if not is_file(folder / FILE):
            _write(folder, whole)
        return read_finding(folder)


def _write(folder: Path, finding: Finding) -> None:
    """The figures first: what has a finding is complete."""
    from robustvit.reporting.export import write_figures  # which draws with Pillow

    for path in (folder / FIGURES).glob("*.*"):  # of a call that was killed
        path.unlink()
    write_figures(folder, finding)
    write_finding(folder, finding)


def _name_of(what: Any) -> str:
    return str(what.get("name") if isinstance(what, Mapping) else getattr(what, "name", what))


def _built(what: Any, threat: LpBall | None) -> Any:
    """The analysis; one that attacks gets the threat where it has none of its own."""
    with explaining(str(what["name"] if isinstance(what, Mapping) and "name" in what else what)):
        analysis = build("analysis", what)
    return replace(analysis, threat=threat) if getattr(analysis, "threat", analysis) is None else analysis

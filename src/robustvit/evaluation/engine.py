"""An evaluator on a subject, from a ledger to a result: resumed, spread over processes, kept and compared."""

import json
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from robustvit.core.adversarial import FILE as ADVERSARIAL
from robustvit.core.errors import UserError
from robustvit.core.examples import EXAMPLES
from robustvit.core.files import is_file
from robustvit.core.processes import run_processes
from robustvit.core.result import NOT_PUBLISHED, Measure, Provenance, Result, ResultWarning
from robustvit.core.result_files import FILE as RESULT, read_result, write_result
from robustvit.core.run import RunFolder, command, versions
from robustvit.core.streams import seeded_globals
from robustvit.core.world import World
from robustvit.data.base import class_names
from robustvit.evaluation.cost import choose_processes
from robustvit.evaluation.evaluator import Evaluation, Evaluator, Sink
from robustvit.evaluation.examples import ExampleKeeper
from robustvit.evaluation.given import recipe_of
from robustvit.evaluation.ledger import Ledger
from robustvit.evaluation.saved import Saver
from robustvit.evaluation.store import Store
from robustvit.evaluation.subject import Subject, open_subject
from robustvit.models.cost import size_facts
from robustvit.models.create import describe


@dataclass(frozen=True)
class Job:
    """How an evaluation is carried out and what its result says of itself; nothing here changes a verdict."""

    run: Path | None = None
    """Outcomes are kept there per image, and nothing is computed twice."""
    processes: int | None = 1
    """Of one thread each, that share the work of this process through the run folder; None: as many as pay off."""
    checks: bool = True
    """Whether the model is probed for signs of masked gradients beforehand."""
    save_images: bool = False
    """Whether every adversarial image is kept."""
    smaller: Result | None = None
    """A result at a smaller eps: what was fooled there counts as fooled."""
    checkpoint: dict[str, Any] = field(default_factory=dict)
    warnings: tuple[ResultWarning, ...] = ()
    reads_identity: bool = True
    """Whether weights and images are hashed for the result; without, it can't be compared or carried over."""


def evaluate_subject(subject: Subject, evaluator: Evaluator, job: Job = Job(), world: World = World()) -> Result:  # noqa: B008
    """The result of an evaluator on a subject, kept and resumed through the job's run folder."""
    _check_job(job, world)
    if job.processes is not None and job.processes > len(subject.indices):
        raise UserError(f"processes: {job.processes}, where there are {len(subject.indices)} images; give fewer")
    with world.together(), nullcontext(subject) if subject.is_ready else subject.ready() as ready:
        evaluation = _begin(evaluator, ready, job)
        if job.processes is None:
            alone = job.run is None or world.size > 1
            job = replace(job, processes=1 if alone else choose_processes(evaluation, torch.get_num_threads()))
        return _Engine(ready, job, world).result(evaluation)


def is_stored(evaluation: Evaluation, run: Path) -> bool:
    """Whether a run folder holds the result of an evaluation."""
    root = RunFolder(run).evaluations
    store = Store.open(root, evaluation.title, evaluation.identity, evaluation.subject, World())
    return store.folder is not None and is_file(store.folder / RESULT)


def _check_job(job: Job, world: World) -> None:
    if job.smaller is not None and not isinstance(job.smaller, Result):
        raise UserError(f"smaller: a result of rv.evaluate, not {job.smaller!r}")
    several = job.processes is not None and job.processes > 1
    if several and world.size > 1:
        raise UserError("processes: torchrun has started several already; give it more, and leave processes out")
    if several and job.run is None:
        raise UserError("several processes share their outcomes through files: give a run folder")


def _begin(evaluator: Evaluator, subject: Subject, job: Job) -> Evaluation:
    evaluation = evaluator.begin(subject)
    if job.save_images and not evaluation.makes_images:
        raise UserError(f"save_images: {evaluation.title} keeps no adversarial images; only suites of attacks do")
    return evaluation if job.smaller is None else evaluation.carry(job.smaller)


@dataclass(frozen=True)
class _Engine:
    subject: Subject
    job: Job
    world: World

    @property
    def processes(self) -> int:
        return self.job.processes or 1

    def result(self, evaluation: Evaluation, reused: "tuple[Evaluation, Ledger] | None" = None) -> Result:
        """What is stored, or computed now; `reused`: an evaluation that has answered part of the same question."""
        root = None if self.job.run is None else RunFolder(self.job.run).evaluations
        identity = {} if root is None else evaluation.identity
        store = Store.open(root, evaluation.title, identity, self.subject, self.world)
        with store.lock("evaluating") as store:
            evaluation = self._prepared(evaluation, store)
            ledger = store.ledger()
            if store.exchanges:
                ledger.exchange(self.world)
            if (expected := evaluation.expected_rows()) is not None:
                ledger.check(expected)
            if reused is not None:
                if self.world.is_first:
                    _copy_rows(evaluation, ledger, *reused)
                self._share(store, ledger)  # every process must know the same rows before it asks what is missing
            has_result = store.folder is not None and is_file(store.folder / RESULT)
            # the first process decides: others may have read the ledgers at another moment
            if self.world.broadcast(has_result and evaluation.is_complete(ledger)) and store.folder is not None:
                ledger.refresh()
                folder = store.folder
                stored = self.world.first(lambda: read_result(folder)) if store.exchanges else read_result(folder)
                return self._stored(store, evaluation, ledger, stored)
            session = self._session()
            noticed = [*self._noticed(evaluation), *store.note_session(session)]
            ledger = self._computed(evaluation, store, ledger)
            control = self._control(evaluation, ledger)
            result = evaluation.result(ledger, self._provenance(evaluation, session), control)
            noticed += [*result.warnings, *self._save_images(evaluation, store, ledger)]
            warnings = tuple(dict.fromkeys(noticed))
            return self._kept(store, replace(result, warnings=warnings, is_probed=self.job.checks))

    def _noticed(self, evaluation: Evaluation, is_probed: bool = False) -> list[ResultWarning]:
        """What is known before any attack; the model is probed once."""
        probes = self.job.checks and not is_probed and self.world.is_first
        of_recipe = evaluation.recipe_warnings(recipe_of(self.job.checkpoint))
        of_data = _other_images(self.subject.images.title)
        return [*self.job.warnings, *of_data, *of_recipe, *(evaluation.probe() if probes else ())]

    def _stored(self, store: Store, evaluation: Evaluation, ledger: Ledger, stored: Result) -> Result:
        """The numbers of the ledger, with what the stored result says of how they were made, and what it lacks."""
        result = evaluation.result(ledger, stored.provenance, self._control(evaluation, ledger))
        settings, measures = _kept_measures(stored, evaluation.settings, result.measures)
        result = replace(result, measures=measures, provenance=replace(stored.provenance, settings=settings))
        before, now = (json.dumps(one.details.get("attacks"), sort_keys=True) for one in (stored, result))
        if before != now:
            raise UserError(
                f"{store.folder}: result.json was made with other searched settings than the files next to it hold; "
                "remove the folder"
            )
        noticed = [*self._noticed(evaluation, stored.is_probed), *stored.warnings]
        noticed += self._save_images(evaluation, store, ledger)
        is_probed = stored.is_probed or self.job.checks
        is_same = result.measures == stored.measures and is_probed == stored.is_probed
        if is_same and set(noticed) == set(stored.warnings):
            return replace(result, warnings=stored.warnings, is_probed=is_probed, folder=str(store.folder))
        return self._kept(store, replace(result, warnings=tuple(dict.fromkeys(noticed)), is_probed=is_probed))

    def _kept(self, store: Store, result: Result) -> Result:
        if store.folder is None:
            return result
        result = replace(result, folder=str(store.folder))
        if self.world.is_first:
            write_result(store.folder, result)
        return result

    def _prepared(self, evaluation: Evaluation, store: Store) -> Evaluation:
        """The first process prepares; the others read what it kept."""
        if self.world.is_first:
            evaluation = evaluation.prepare(store.folder)
        self.world.barrier()
        return evaluation if self.world.is_first else evaluation.prepare(store.folder)

    def _computed(self, evaluation: Evaluation, store: Store, ledger: Ledger) -> Ledger:
        """Rounds of all processes, until the ledger holds all that the result needs."""
        known = -1
        while not self.world.broadcast(evaluation.is_complete(ledger)):
            if len(ledger) == known:
                raise RuntimeError(f"{evaluation.title}: a round added nothing, and the evaluation isn't complete")
            known = len(ledger)
            if self.processes > 1 and store.folder is not None:
                work = {"opened_with": self.subject.opened_with, "evaluator": evaluation.evaluator, "store": store}
                run_processes(self.processes, _work, {**work, "saves": self.job.save_images}, store.folder)
                ledger = store.ledger()
                continue
            _advance(evaluation, store, ledger, self.job.save_images)
            self._share(store, ledger)
        return ledger

    def _share(self, store: Store, ledger: Ledger) -> None:
        """What each process has recorded, in every process."""
        if store.folder is None or store.exchanges:
            ledger.exchange(self.world)
        self.world.barrier()
        ledger.refresh()

    def _control(self, evaluation: Evaluation, ledger: Ledger) -> Result | None:
        control = evaluation.control()
        if control is None:
            return None
        smaller = None if self.job.smaller is None else self.job.smaller.control_result
        job = replace(self.job, checks=False, save_images=False, smaller=smaller)
        begun = _begin(control, self.subject, job)
        return _Engine(self.subject, job, self.world).result(begun, reused=(evaluation, ledger))

    def _save_images(self, evaluation: Evaluation, store: Store, ledger: Ledger) -> Sequence[ResultWarning]:
        wanted = self.job.save_images and self.world.is_first
        if not wanted or store.folder is None or is_file(store.folder / ADVERSARIAL):
            return []
        return evaluation.save_images(store.folder, ledger, self.job.smaller)

    def _session(self) -> dict[str, Any]:
        """What the numbers of this call are made with."""
        threads = 1 if self.processes > 1 else torch.get_num_threads()
        processes = self.world.size * self.processes
        return {"processes": processes, "threads": threads, "versions": versions(), "command": command()}

    def _provenance(self, evaluation: Evaluation, session: dict[str, Any]) -> Provenance:
        subject, hashed = self.subject, self.job.reads_identity
        sha256 = subject.fingerprint() if hashed else ""
        x, _ = subject.batch(subject.indices[:1])
        with seeded_globals("size"):
            size = size_facts(subject.model, (x.shape[2], x.shape[3]))
        return Provenance(
            data=subject.images.title,
            data_sha256=subject.data_sha256 if hashed else "",
            num_images=len(subject.indices),
            images_rule=subject.images_rule,
            seed=subject.seed,
            precision=str(subject.dtype).removeprefix("torch."),
            device=subject.device,
            model={**describe(subject.model), **size},
            checkpoint={"path": None, "sha256": sha256, **self.job.checkpoint, "weights_sha256": sha256},
            settings=evaluation.settings,
            class_names=class_names(subject.images) or (),
            **session,
        )


def _other_images(title: str) -> list[ResultWarning]:
    if NOT_PUBLISHED not in title:
        return []
    advice = "don't compare these numbers with published ones"
    return [
        ResultWarning("other-images", f"{title.partition(' of ')[0]}: {title.rpartition('(')[2].rstrip(')')}", advice)
    ]


def _kept_measures(
    stored: Result, settings: dict[str, Any], measures: tuple[Measure, ...]
) -> tuple[dict[str, Any], tuple[Measure, ...]]:
    """Settings and measures of a stored result with those of now, which may lack some that others gave, or add some.

    Such settings are no part of the identity: a baseline, say, of which the answers don't depend.
    """
    before = stored.provenance.settings
    own = {one.name: one for one in measures}
    further = [one for one in stored.measures if one.name not in own]
    if before == settings or not further:
        return settings, measures
    merged = {**{one.name: one for one in stored.measures}, **own}
    headline = merged.pop(measures[-1].name)
    given = {key: before.get(key) if value is None else value for key, value in settings.items()}
    return given, (*merged.values(), headline)


def _copy_rows(evaluation: Evaluation, ledger: Ledger, other: Evaluation, answers: Ledger) -> None:
    """Rows of stages that both evaluations have."""
    rows = answers.rows_of(evaluation.shared_stages(other))
    ledger.record([row for row in rows if "image" in row and ledger.outcome(row["stage"], row["image"]) is None])


def _advance(evaluation: Evaluation, store: Store, ledger: Ledger, saves: bool) -> None:
    subject, first = evaluation.subject, store.world.is_first
    sinks: list[Sink] = []
    if store.folder is not None and first:
        sinks.append(ExampleKeeper(store.folder / EXAMPLES, subject))
    if store.folder is not None and saves:
        sinks.append(Saver(store.folder))
    evaluation.advance(ledger, store.world, sinks, subject.quiet or not first)


def _work(*, world: World, opened_with: dict[str, Any], evaluator: Evaluator, store: Store, saves: bool) -> None:
    """One of several processes: its shard of the images, into a ledger of its own."""
    with open_subject(**opened_with).ready() as subject:
        mine = replace(store, world=world)
        evaluation = evaluator.begin(subject).prepare(store.folder)
        _advance(evaluation, mine, mine.ledger(), saves)

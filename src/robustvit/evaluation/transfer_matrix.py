"""Adversarial images of several models, each judged on all of them."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import BeforeValidator, Field
from torch import Tensor

from robustvit.attacks import Search, attacks_inside, passes_of
from robustvit.attacks.hooks import check_attack
from robustvit.core.component import component, to_dict
from robustvit.core.errors import UserError
from robustvit.core.measure import Kind
from robustvit.core.numbers import format_fraction
from robustvit.core.progress import Progress
from robustvit.core.result import Provenance, Result, ResultWarning
from robustvit.core.streams import sample_streams, seeded_globals
from robustvit.core.world import World
from robustvit.evaluation.batches import batches, in_memory
from robustvit.evaluation.evaluator import Evaluation, Sink
from robustvit.evaluation.ledger import Answers, Ledger
from robustvit.evaluation.ledger_rows import batch_row
from robustvit.evaluation.plan import Plan, Stage
from robustvit.evaluation.sanity import probe_model, warning
from robustvit.evaluation.subject import Subject
from robustvit.evaluation.suite import AnySuite, suite_from
from robustvit.evaluation.transfer_result import MEASURE_KINDS, NAME, OWN, Pair, transfer_result
from robustvit.losses import predicted_classes
from robustvit.models import fingerprint
from robustvit.models.reference import AnyModelRef, ModelRef, distinct_titles
from robustvit.threats import LpBall


def _as_list(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else (value,)


@component("evaluator", NAME)
class TransferMatrix:
    """Accuracy of every model on the adversarial images of every other and its own; an image is attacked once a source.

    Every image is attacked with all steps, whether the model is right or not, and accuracy counts all images.
    """

    threat: LpBall
    """Which perturbations are allowed."""
    models: Annotated[tuple[AnyModelRef, ...], BeforeValidator(_as_list), Field(min_length=1)]
    """Other models: run folders, checkpoints, timm names, zoo:NAME."""
    attack: AnySuite = field(default_factory=lambda: suite_from("pgd-8:step=eps/8,start=none"))
    """A single untargeted attack."""

    def measure_kinds(self) -> Mapping[str, Kind]:
        return MEASURE_KINDS

    def begin(self, subject: Subject) -> "TransferEvaluation":
        plan, warnings = self.attack.plan(self.threat).fitted(subject.num_classes, self.threat)
        parts = [part for stage in plan.every for part in attacks_inside(stage.attack)]
        needs_model = any(hasattr(part, "prepare") for part in parts)
        if len(plan.every) != 1 or plan.stages[0].target_rank is not None or needs_model:
            raise UserError(f"{NAME}: attack: a single untargeted attack, such as pgd-20, not '{plan.name}'")
        if any(hasattr(part, "surrogate") for part in parts):
            crafts = f"'{plan.name}' would craft all images on its surrogate"
            raise UserError(f"{NAME}: attack: {crafts}; give the attack alone, and the surrogate in models")
        check_attack(plan.stages[0].attack, subject)
        named = _named(self.models)
        for ref in named.values():
            if fingerprint(ref.module()) == subject.fingerprint():
                raise UserError(f"{NAME}: models: {ref.source} is the evaluated model itself; give others")
        return TransferEvaluation(self, subject, plan, named, warnings)


def _named(models: Sequence[ModelRef]) -> dict[str, ModelRef]:
    """By title, with a digest where that could mean several."""
    if len(set(models)) < len(models):
        raise UserError(f"{NAME}: models: one is given twice: {', '.join(map(str, models))}")
    return dict(zip(distinct_titles(models, OWN), models, strict=True))


@contextmanager
def _opened(ref: ModelRef, subject: Subject) -> Iterator[Subject]:
    """Another model on the same images, checked as the evaluated one is."""
    with ExitStack() as stack:
        try:
            ready = stack.enter_context(replace(subject, model=ref.module(), num_classes=0).ready())
        except UserError as error:
            raise UserError(f"{NAME}: {ref.source}: {error}") from None
        yield ready


@dataclass(frozen=True)
class TransferEvaluation(Evaluation):
    """One attack on several models, over the images of a subject."""

    evaluator: TransferMatrix
    plan: Plan
    models: Mapping[str, ModelRef]
    warnings: tuple[ResultWarning, ...] = ()

    @property
    def stage(self) -> Stage:
        return self.plan.stages[0]

    @property
    def threat(self) -> LpBall:
        return self.evaluator.threat

    @property
    def names(self) -> tuple[str, ...]:
        return (OWN, *self.models)

    @property
    def title(self) -> str:
        return f"{NAME}-{self.plan.name}-{self.threat.norm}-{format_fraction(self.threat.eps)}"

    @property
    def identity(self) -> dict[str, Any]:
        models = {name: ref.digest for name, ref in self.models.items()}
        return {"threat": to_dict(self.threat), "attack": self.plan.to_dict(), "models": models}

    @property
    def settings(self) -> dict[str, Any]:
        return {"name": NAME, "attack": self.plan.name, "models": [*map(str, self.evaluator.models)]}

    def row(self, source: str | None) -> list[Pair]:
        return [Pair(source, target) for target in self.names]

    def pairs(self) -> list[Pair]:
        return [pair for source in (None, *self.names) for pair in self.row(source)]

    def passes(self) -> int | None:
        attack, models = passes_of(self.stage.attack), len(self.names)
        return None if attack is None else len(self.subject.indices) * models * (attack + models + 1)

    def probe(self) -> Sequence[ResultWarning]:
        return probe_model(self.subject, self.plan, self.threat)

    def expected_rows(self) -> dict[str, np.ndarray]:
        return {pair.name: self.subject.indices.numpy() for pair in self.pairs()}

    def is_complete(self, ledger: Ledger) -> bool:
        return not any(len(self._missing(ledger, source)) for source in (None, *self.names))

    def _missing(self, ledger: Ledger, source: str | None) -> np.ndarray:
        """Images that some target has not answered."""
        images = self.subject.indices.numpy()
        answered = [ledger.answers(pair.name).images for pair in self.row(source)]
        return np.setdiff1d(images, reduce(np.intersect1d, answered))

    def advance(self, ledger: Ledger, world: World, sinks: Sequence[Sink], quiet: bool) -> None:
        """Source after source; what is crafted meets all targets at once, so that no image need be kept."""
        with ExitStack() as stack:
            subjects = {OWN: self.subject}
            for name, ref in self.models.items():
                subjects[name] = stack.enter_context(_opened(ref, self.subject))
            for source in (None, *self.names):
                self._ask(ledger, world, subjects, source, quiet)

    def _ask(
        self, ledger: Ledger, world: World, subjects: Mapping[str, Subject], source: str | None, quiet: bool
    ) -> None:
        if not quiet:
            ledger.refresh()  # progress is that of all processes
        total, missing = len(self.subject.indices), self._missing(ledger, source)
        title = "clean accuracy" if source is None else f"{self.stage.name} on {source}"
        todo = world.shard(torch.from_numpy(missing)).tolist()
        with Progress(title, total, total - len(missing), quiet=quiet) as progress:
            for batch in batches(todo, self.subject.batch_size):
                work = partial(self._answers, ledger, subjects, source)
                for _, answers in in_memory(batch, work, ledger.warn):
                    ledger.record([batch_row(name, *answer) for name, answer in answers.items() if len(answer.images)])
                if not quiet:
                    ledger.refresh()
                    progress.update(total - len(self._missing(ledger, source)))

    def _answers(
        self, ledger: Ledger, subjects: Mapping[str, Subject], source: str | None, batch: Tensor
    ) -> dict[str, Answers]:
        """By condition: of those images that it has no answer for, which after a kill may be some of a batch."""
        x, y = self.subject.batch(batch)
        if source is not None:
            x = self._crafted(ledger, subjects[source], source, batch)
        answers = {}
        for pair in self.row(source):
            target = subjects[pair.target]
            with torch.no_grad(), seeded_globals(self.subject.seed, "transfer", int(batch[0])):
                predicted = predicted_classes(target(x.to(target.dtype)))
            left = ~np.isin(batch.numpy(), ledger.answers(pair.name).images)
            columns = (batch, predicted.cpu(), (predicted == y).cpu())
            answers[pair.name] = Answers(*(column.numpy()[left] for column in columns))
        return answers

    def _crafted(self, ledger: Ledger, source: Subject, name: str, batch: Tensor) -> Tensor:
        """Adversarial images of a source; where one isn't inside of the threat, the clean one counts."""
        x, y = source.batch(batch)
        random = sample_streams(source.seed, batch).child(*self.plan.uses()[self.stage.name]).to(x.device)
        with seeded_globals(source.seed, self.stage.name, int(batch[0])):  # for models that are random
            x_adv = self.stage.attack(source, x, y, self.threat, Search(random)).detach()
        inside = self.threat.contains(x, x_adv)
        if not bool(inside.all()):
            observation = f"{self.stage.name} on {name} made images outside of the threat; clean ones were judged"
            ledger.warn(warning("unverified", observation))
        return torch.where(inside[:, None, None, None], x_adv, x)

    def result(self, ledger: Ledger, provenance: Provenance, control: Result | None) -> Result:
        return transfer_result(self, ledger, provenance)

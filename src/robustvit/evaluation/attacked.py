"""Robust accuracy: the worst case over a suite of attacks inside a threat."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from robustvit.attacks import Attack, attacks_inside, judges_changed_model
from robustvit.attacks.hooks import attack_notes, check_attack, control_of, judged_model, prepare_attacks
from robustvit.core.component import component, to_dict
from robustvit.core.errors import UserError
from robustvit.core.journal import Row
from robustvit.core.numbers import format_fraction
from robustvit.core.progress import Progress, say
from robustvit.core.result import Provenance, Result, ResultWarning
from robustvit.evaluation.attacked_result import attacked_result, sample_of, survivors_of
from robustvit.evaluation.carried import CARRIED, Carried, again
from robustvit.evaluation.evaluator import Evaluation, Evaluator, Sink
from robustvit.evaluation.ledger import CLEAN, Ledger
from robustvit.evaluation.memory import batches, in_memory
from robustvit.evaluation.plan import Plan, Stage
from robustvit.evaluation.runner import Judge, clean_rows
from robustvit.evaluation.sanity import chance_warning, probe_model
from robustvit.evaluation.subject import Subject
from robustvit.evaluation.suite import AnySuite, suite_from
from robustvit.threats import LpBall


@component("evaluator", "attacked")
class Attacked:
    """Clean and worst-case robust accuracy under a suite of attacks; each image is judged on the original model."""

    threat: LpBall
    suite: AnySuite = field(default_factory=lambda: suite_from("pgd-20"))
    quantized: bool = False
    """Adversarial images have pixels in steps of 1/255 and are judged so."""
    carried: Carried = Carried()
    """What is known from a smaller eps."""

    def plan(self, num_classes: int) -> tuple[Plan, tuple[ResultWarning, ...]]:
        """The suite's stages for so many classes, and what had to change for them."""
        return self.suite.plan(self.threat).fitted(num_classes, self.threat)

    def begin(self, subject: Subject) -> "AttackedEvaluation":
        plan, warnings = self.plan(subject.num_classes)
        if len(plan.stages) > 1 and any(map(judges_changed_model, _attacks(plan))):
            raise UserError(f"suite '{plan.name}': an attack judged on a changed model goes with no other")
        for stage in plan.every:
            check_attack(stage.attack, subject)
        return AttackedEvaluation(self, subject, plan, warnings)


@component("suite", "control")
class ControlSuite:
    """A suite with chance in place of what its attacks search for; what doesn't search is as it was."""

    of: AnySuite
    title: str | None = None

    def plan(self, threat: LpBall) -> Plan:
        plan = self.of.plan(threat)
        name = control_name(plan)

        def controlled(stage: Stage) -> Stage:
            control = control_of(stage.attack)
            return stage if control is None else replace(stage, name=f"{stage.name}: {name}", attack=control)

        stages = tuple(map(controlled, plan.stages))
        return replace(plan, name=self.title or f"{plan.name}: {name}", stages=stages)


def control_name(plan: Plan) -> str | None:
    """What replaces the search in the control, such as `random factors`; None if nothing is searched for."""
    names = (getattr(part, "control_name", "chance") for part in _attacks(plan) if control_of(part) is not None)
    return next(names, None)


@dataclass(frozen=True)
class AttackedEvaluation(Evaluation):
    """A fitted suite on a subject."""

    evaluator: Attacked
    plan: Plan
    warnings: tuple[ResultWarning, ...] = ()

    @property
    def threat(self) -> LpBall:
        return self.evaluator.threat

    @property
    def title(self) -> str:
        return f"{self.plan.name}-{self.threat.norm}-{format_fraction(self.threat.eps)}"

    @property
    def identity(self) -> dict[str, Any]:
        carried = self.evaluator.carried
        return {
            "threat": to_dict(self.threat),
            "suite": self.plan.to_dict(),
            **({"quantized": True} if self.evaluator.quantized else {}),
            **({"smaller": list(carried.smaller_eps)} if carried.smaller_eps else {}),
        }

    @property
    def settings(self) -> dict[str, Any]:
        return {"name": "attacked", "suite": self.plan.name, "quantized": self.evaluator.quantized}

    def shared_stages(self, other: "AttackedEvaluation") -> list[str]:
        """Stages whose rows both may use: the same attack under the same name, judged on the same model."""
        if self._changes_model() or other._changes_model():
            return []
        known = {stage.name: stage for stage in other.plan.every}
        return [CLEAN, *(stage.name for stage in self.plan.every if known.get(stage.name) == stage)]

    def prepare(self, folder: Path | None) -> "AttackedEvaluation":
        prepared = iter(prepare_attacks([stage.attack for stage in self.plan.every], self.subject, folder))
        stages, sampled = (
            tuple(replace(stage, attack=next(prepared)) for stage in part)
            for part in (self.plan.stages, self.plan.sampled)
        )
        return replace(self, plan=replace(self.plan, stages=stages, sampled=sampled))

    def probe(self) -> Sequence[ResultWarning]:
        return probe_model(self.subject, self.plan, self.threat)

    def control(self) -> tuple[str, Evaluator] | None:
        name = control_name(self.plan)
        if name is None:
            return None
        return name, replace(self.evaluator, suite=ControlSuite(of=self.evaluator.suite), carried=Carried())

    def advance(self, ledger: Ledger, shard: Tensor, sinks: Sequence[Sink], quiet: bool) -> None:
        """All stages for all images of the shard; then, once every process has come so far, the sample's."""
        with self.judged_model():
            judge, mine = Judge(self.subject, self.threat, self.evaluator.quantized, ledger, sinks), shard.tolist()
            self._run_clean(ledger, mine, quiet)
            self._run_all(judge, mine, quiet)
            sample = sample_of(ledger, self.plan, self.subject, self.evaluator.carried)
            if sample is not None:
                self._run_stages(judge, self.plan.sampled, set(mine), list(sample.images), quiet)

    def attack_again(self, ledger: Ledger, sink: Sink, images: Sequence[int]) -> None:
        """Show a sink images that were fooled before: the stage that did it repeats what it did."""
        uses = self.plan.uses()
        with self.judged_model():
            judge = Judge(self.subject, self.threat, self.evaluator.quantized, ledger, [sink])
            for stage in self.plan.every:
                fooled = [i for i in images if ledger.outcome(stage.name, i) == "fooled"]
                for batch in batches(fooled, self.subject.batch_size):
                    judge.attack(stage, uses[stage.name], batch)

    def is_complete(self, ledger: Ledger) -> bool:
        sample = sample_of(ledger, self.plan, self.subject, self.evaluator.carried)
        repeated = [again(stage) for stage in self.plan.stages]
        return (
            sample is not None
            and survivors_of(ledger, repeated, self.evaluator.carried.again) is not None
            and survivors_of(ledger, [stage.name for stage in self.plan.sampled], sample.images) is not None
        )

    def notes(self) -> list[str]:
        """What a reader must know about the attacks."""
        return list(dict.fromkeys(note for stage in self.plan.every for note in attack_notes(stage.attack)))

    def result(self, ledger: Ledger, provenance: Provenance, control: Result | None) -> Result:
        return attacked_result(
            self.subject, self.plan, self.evaluator, ledger, provenance, self.warnings,
            None if control is None else (str(control_name(self.plan)), control),
        )  # fmt: skip

    @contextmanager
    def judged_model(self) -> Iterator[None]:
        """Where an attack asks for it, the model is changed within, for the attack and for the judge alike."""
        with ExitStack() as stack:
            for stage in self.plan.stages:
                stack.enter_context(judged_model(stage.attack, self.subject.model))
            yield

    def _changes_model(self) -> bool:
        return any(map(judges_changed_model, _attacks(self.plan)))

    def _run_clean(self, ledger: Ledger, mine: list[int], quiet: bool) -> None:
        ranks = [stage.target_rank or 0 for stage in self.plan.every if stage.target_order == "ranked"]
        most, todo = max(ranks, default=0), [i for i in mine if ledger.outcome(CLEAN, i) is None]
        everyone = self.subject.indices.tolist()
        with Progress("clean accuracy", len(everyone), len(everyone) - len(todo), quiet=quiet) as progress:
            for _ in self._recorded(ledger, todo, lambda part: clean_rows(self.subject, part, most)):
                self._show(progress, ledger, CLEAN, everyone, quiet)

    def _recorded(self, ledger: Ledger, images: list[int], work: Callable[[Tensor], list[Row]]) -> Iterator[None]:
        """The work's rows, batch by batch."""
        for batch in batches(images, self.subject.batch_size):
            for _, rows in in_memory(batch, work, ledger.warn):
                ledger.record(rows)
            yield

    def _run_all(self, judge: Judge, mine: list[int], quiet: bool) -> None:
        ledger, carried = judge.ledger, self.evaluator.carried
        ledger.record(carried.rows(mine, ledger))
        right = [i for i in mine if ledger.outcome(CLEAN, i) == "correct"]
        if self.plan.stages and not quiet and len(mine) == len(self.subject.indices):
            for warning in chance_warning(self.subject, len(right)):  # before hours of attacks
                say(f"warning: {warning}")
        unknown = [i for i in self.subject.indices.tolist() if ledger.outcome(CLEAN, i) != "wrong"]
        fresh = [i for i in unknown if ledger.outcome(CARRIED, i) is None]
        self._run_stages(judge, self.plan.stages, set(right), fresh, quiet, of_all=True)
        uses = self.plan.uses()
        repeated = [replace(stage, name=again(stage)) for stage in self.plan.stages]
        named = {again(stage): uses[stage.name] for stage in self.plan.stages}
        unseen = replace(judge, sinks=())
        self._run_stages(unseen, repeated, set(mine), list(carried.again), quiet, uses=named)

    def _run_stages(
        self,
        judge: Judge,
        stages: Sequence[Stage],
        mine: set[int],
        images: list[int],
        quiet: bool,
        of_all: bool = False,
        uses: dict[str, tuple[str, int]] | None = None,
    ) -> None:
        """Stage after stage over those of my images that are robust so far."""
        ledger, uses = judge.ledger, uses or self.plan.uses()
        for stage in stages:
            todo = [i for i in images if i in mine and ledger.outcome(stage.name, i) is None]
            with Progress(stage.name, len(images), len(images) - len(todo), quiet=quiet) as progress:
                for _ in self._recorded(ledger, todo, partial(judge.attack, stage, uses[stage.name])):
                    self._show(progress, ledger, stage.name, images, quiet, of_all)
            images = [i for i in images if ledger.outcome(stage.name, i) != "fooled"]

    def _show(
        self, progress: Progress, ledger: Ledger, stage: str, images: list[int], quiet: bool, of_all: bool = False
    ) -> None:
        """What all processes have done of a stage; `of_all`: and how many of all images may still be robust."""
        if quiet:
            return
        ledger.refresh()
        outcomes = [ledger.outcome(stage, i) for i in images]
        robust = 100 * sum(outcome != "fooled" for outcome in outcomes) / len(self.subject.indices)
        facts = {"robust": f"{robust:.1f} % at most"} if of_all else {}
        progress.update(sum(outcome is not None for outcome in outcomes), **facts)


def _attacks(plan: Plan) -> list[Attack]:
    return [part for stage in plan.every for part in attacks_inside(stage.attack)]

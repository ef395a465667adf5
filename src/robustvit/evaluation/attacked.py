"""Robust accuracy: the worst case over a suite of attacks inside a threat."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from robustvit.attacks import Attack, attacks_inside, judges_changed_model, passes_of
from robustvit.attacks.hooks import attack_notes, check_attack, control_of, judged_model, prepare_attacks
from robustvit.core.component import component, to_dict
from robustvit.core.errors import UserError
from robustvit.core.measure import Kind
from robustvit.core.numbers import format_fraction
from robustvit.core.progress import say
from robustvit.core.result import (
    CLEAN_ACCURACY,
    ORIGINAL_CLEAN_ACCURACY,
    ROBUST_ACCURACY,
    Provenance,
    Result,
    ResultWarning,
)
from robustvit.core.world import World
from robustvit.evaluation.attacked_result import attacked_result
from robustvit.evaluation.batches import batches
from robustvit.evaluation.carried import CARRIED, Carried, again, carried_from
from robustvit.evaluation.evaluator import Evaluation, Evaluator, Sink
from robustvit.evaluation.ledger import CLEAN, Ledger
from robustvit.evaluation.plan import Plan, Stage
from robustvit.evaluation.runner import Judge, Runner, clean_rows
from robustvit.evaluation.sampling import Sample, choose_sample
from robustvit.evaluation.sanity import chance_warning, probe_model
from robustvit.evaluation.saved import save_images
from robustvit.evaluation.subject import Subject
from robustvit.evaluation.suite import AnySuite, suite_from
from robustvit.threats import LpBall


@component("evaluator", "attacked")
class Attacked:
    """Clean and worst-case robust accuracy under a suite of attacks; each image is judged on the original model."""

    threat: LpBall
    """Which perturbations are allowed."""
    suite: AnySuite = field(default_factory=lambda: suite_from("pgd-20"))
    """Which attacks."""
    quantized: bool = False
    """Adversarial images have pixels in steps of 1/255 and are judged so."""
    carried: Carried = Carried()
    """What is known from a smaller eps."""

    def plan(self, num_classes: int) -> tuple[Plan, tuple[ResultWarning, ...]]:
        """The suite's stages for so many classes, and what had to change for them."""
        return self.suite.plan(self.threat).fitted(num_classes, self.threat)

    def measure_kinds(self) -> Mapping[str, Kind]:
        return dict.fromkeys((ORIGINAL_CLEAN_ACCURACY, CLEAN_ACCURACY, ROBUST_ACCURACY), "accuracy")

    def begin(self, subject: Subject) -> "AttackedEvaluation":
        plan, warnings = self.plan(subject.num_classes)
        if len(plan.stages) > 1 and _changes_model(plan):
            raise UserError(f"suite '{plan.name}': an attack judged on a changed model goes with no other")
        for stage in plan.every:
            check_attack(stage.attack, subject)
        return AttackedEvaluation(self, subject, plan, warnings)


@component("suite", "control")
class ControlSuite:
    """A suite with chance in place of what its attacks search for; what doesn't search is as it was."""

    of: AnySuite
    """The suite that is compared with."""
    title: str | None = None
    """Of the result; null: made from the attacks."""

    def plan(self, threat: LpBall) -> Plan:
        plan = self.of.plan(threat)
        name = control_name(plan)
        if name is None:
            raise UserError(f"suite 'control': '{plan.name}' searches for nothing that chance could replace")

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
    makes_images = True
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

    def carry(self, smaller: Result) -> "AttackedEvaluation":
        known = self.evaluator
        carried = carried_from(smaller, self.subject, self.plan.name, known.threat, known.quantized)
        return replace(known, carried=carried).begin(self.subject)

    def shared_stages(self, other: Evaluation) -> list[str]:
        """The same attack under the same name, judged on the same model."""
        if not isinstance(other, AttackedEvaluation):
            return []
        if _changes_model(self.plan) or _changes_model(other.plan):
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

    def passes(self) -> int | None:
        each = [passes_of(stage.attack) for stage in self.plan.every]
        return None if None in each else len(self.subject.indices) * (1 + sum(filter(None, each)))

    def probe(self) -> Sequence[ResultWarning]:
        return probe_model(self.subject, self.plan, self.threat)

    def control(self) -> Evaluator | None:
        if control_name(self.plan) is None:
            return None
        return replace(self.evaluator, suite=ControlSuite(of=self.evaluator.suite), carried=Carried())

    def advance(self, ledger: Ledger, world: World, sinks: Sequence[Sink], quiet: bool) -> None:
        """All stages for all images of the shard; then, once every process has come so far, the sample's."""
        indices, carried = self.subject.indices, self.evaluator.carried
        everyone, mine = indices.tolist(), set(world.shard(indices).tolist())
        runner = Runner(self.subject, ledger, mine, quiet)
        with self.judged_model():
            ranks = [stage.target_rank or 0 for stage in self.plan.every if stage.target_order == "ranked"]
            clean = partial(clean_rows, self.subject, max(ranks, default=0))
            runner.run(CLEAN, clean, everyone, title="clean accuracy")
            ledger.record(carried.rows(mine, ledger))
            right = sum(ledger.outcome(CLEAN, i) == "correct" for i in mine)
            is_control = isinstance(self.evaluator.suite, ControlSuite)  # of a suite that has said it
            if self.plan.stages and not quiet and not is_control and len(mine) == len(everyone):
                for warning in chance_warning(self.subject, right):  # before hours of attacks
                    say(f"warning: {warning}")
            fresh = [i for i in everyone if ledger.outcome(CLEAN, i) != "wrong" and ledger.outcome(CARRIED, i) is None]
            judge = self._judge(ledger, sinks)
            runner.run_stages(judge, self.plan.stages, fresh, of_all=True)
            repeated = [replace(stage, name=again(stage)) for stage in self.plan.every]
            uses = {again(stage): judge.uses[stage.name] for stage in self.plan.every}
            runner.run_stages(replace(judge, sinks=(), uses=uses), repeated, carried.again)
            sample = self.sample(ledger)
            if sample is not None:
                runner.run_stages(judge, self.plan.sampled, sample.images)

    def save_images(self, folder: Path, ledger: Ledger, smaller: Result | None) -> list[ResultWarning]:
        return save_images(folder, self, ledger, smaller)

    def attack_again(self, ledger: Ledger, sink: Sink, images: Sequence[int]) -> None:
        """Show a sink images that were fooled before: the stage that did it repeats what it did."""
        judge = self._judge(ledger, [sink])
        with self.judged_model():
            for stage in self.plan.every:
                fooled = [i for i in images if ledger.outcome(stage.name, i) == "fooled"]
                for batch in batches(fooled, self.subject.batch_size):
                    judge.attack(stage, batch)

    def sample(self, ledger: Ledger) -> Sample | None:
        """Of what the stages left robust; None where a row is missing."""
        right = ledger.survivors([CLEAN], self.subject.indices.tolist())
        if right is None or any(ledger.outcome(CARRIED, image) is None for image in self.evaluator.carried.images):
            return None
        fresh = [image for image in right if ledger.outcome(CARRIED, image) is None]
        left = ledger.survivors([stage.name for stage in self.plan.stages], fresh)
        total, seed = len(self.subject.indices), self.subject.seed
        return None if left is None else choose_sample(left, total, seed, self.plan.precision)

    def expected_rows(self) -> dict[str, np.ndarray]:
        everyone, carried = self.subject.indices.numpy(), self.evaluator.carried
        repeated = {again(stage): np.array(carried.again) for stage in self.plan.every}
        stages = dict.fromkeys((CLEAN, *(stage.name for stage in self.plan.every)), everyone)
        return {CARRIED: np.array(carried.images), **repeated, **stages}

    def is_complete(self, ledger: Ledger) -> bool:
        sample = self.sample(ledger)
        return (
            sample is not None
            and ledger.survivors(map(again, self.plan.every), self.evaluator.carried.again) is not None
            and ledger.survivors([stage.name for stage in self.plan.sampled], sample.images) is not None
        )

    def notes(self) -> list[str]:
        """What a reader must know about the attacks."""
        return list(dict.fromkeys(note for stage in self.plan.every for note in attack_notes(stage.attack)))

    def result(self, ledger: Ledger, provenance: Provenance, control: Result | None) -> Result:
        named = None if control is None else (str(control_name(self.plan)), control)
        return attacked_result(self, ledger, provenance, named)

    @contextmanager
    def judged_model(self) -> Iterator[None]:
        """Where an attack asks for it, the model is changed within, for the attack and for the judge alike."""
        with ExitStack() as stack:
            for stage in self.plan.stages:
                stack.enter_context(judged_model(stage.attack, self.subject.model))
            yield

    def _judge(self, ledger: Ledger, sinks: Sequence[Sink]) -> Judge:
        return Judge(self.subject, self.threat, self.evaluator.quantized, ledger, sinks, self.plan.uses())


def _changes_model(plan: Plan) -> bool:
    return any(map(judges_changed_model, _attacks(plan)))


def _attacks(plan: Plan) -> list[Attack]:
    return [part for stage in plan.every for part in attacks_inside(stage.attack)]

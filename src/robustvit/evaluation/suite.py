"""Suites of attacks as components that nest; `suite_names` has the short forms of them that the field uses."""

from collections.abc import Sequence
from dataclasses import field, replace
from typing import Annotated, Any, Literal, Protocol, cast

from pydantic import Field, PlainValidator

from robustvit.attacks import APGD, FAB, Attack, FromSurrogate, LowPrecision, Restarts, Square, attacks_inside, label
from robustvit.core.component import build, component, explaining, is_component, registered
from robustvit.core.errors import UserError
from robustvit.core.numbers import Count, UnitInterval
from robustvit.evaluation.plan import Plan, Stage, targeted
from robustvit.models.reference import AnyModelRef
from robustvit.threats import LpBall


class Suite(Protocol):
    """Attacks in order, chosen by the norm of the threat; `title` names it in results, else its settings do."""

    @property
    def title(self) -> str | None: ...

    def plan(self, threat: LpBall) -> Plan: ...


def suite_from(value: Any) -> Suite:
    """A suite by name or settings, an attack, or a list of these; mistakes show now, whatever the threat will be."""
    suite = _suite(value)
    with explaining(f"suite '{suite.title or value}': attack"):
        suite.plan(LpBall("inf", 0.0))
    return suite


def _suite(value: Any) -> Suite:
    if isinstance(value, str):
        from robustvit.evaluation.suite_names import suite_by_name

        return suite_by_name(value)
    if isinstance(value, Plan):
        return value
    with explaining("suite"):
        name = value.get("name") if isinstance(value, dict) else None
        if is_component(value, "suite") or (isinstance(name, str) and name in registered("suite")):
            return cast(Suite, build("suite", value))
        if isinstance(value, dict) or is_component(value, "attack"):
            return Single(attack=build("attack", value))
        if isinstance(value, Sequence) and value:
            return Attacks(members=tuple(value))
    raise UserError(f"suite: a name such as 'pgd-20' or a list of attacks, not {value!r}")


AnySuite = Annotated[Suite, PlainValidator(suite_from)]


@component("suite", "single")
class Single:
    """One attack, away from the true class or towards each of so many others."""

    attack: Annotated[Attack, PlainValidator(lambda value: build("attack", value))]
    """The attack."""
    targets: Count | None = None
    """Classes that each image is driven to; null: away from its own."""
    title: str | None = None
    """Of the result; null: made from the attacks."""

    def plan(self, threat: LpBall) -> Plan:
        name = self.title or label(self.attack)
        if self.targets is None:
            return Plan(name, (Stage(name, self.attack),))
        return Plan(name, targeted(name, self.attack, self.targets))


@component("suite", "attacks")
class Attacks:
    """Suites and attacks one after the other; without any, accuracy alone."""

    members: tuple[AnySuite, ...] = ()
    """Suites, one after the other."""
    title: str | None = None
    """Of the result; null: made from the attacks."""

    def plan(self, threat: LpBall) -> Plan:
        plans = [member.plan(threat) for member in self.members]
        for plan in plans:
            if plan.sampled:
                raise UserError(f"suite '{plan.name}' bounds what its own stages leave robust, and goes with no other")
        stages = tuple(stage for plan in plans for stage in plan.stages)
        names = [stage.name for stage in stages]
        if len(set(names)) < len(names):
            stages = tuple(replace(stage, name=f"{i}/{stage.name}") for i, stage in enumerate(stages, start=1))
        return Plan(self.title or "+".join(stage.name for stage in stages) or "clean", stages)


@component("suite", "transfer")
class Transfer:
    """A suite whose images are crafted on another model."""

    surrogate: AnyModelRef
    """The model that is attacked instead."""
    attack: AnySuite = field(default_factory=lambda: suite_from("pgd-20"))
    """The suite whose attacks meet the surrogate."""
    title: str | None = None
    """Of the result; null: made from the attacks."""

    def plan(self, threat: LpBall) -> Plan:
        inner = self.attack.plan(threat)
        needs_model = any(hasattr(part, "prepare") for stage in inner.stages for part in attacks_inside(stage.attack))
        if inner.sampled or needs_model or any(stage.target_order == "nearest" for stage in inner.stages):
            raise UserError(
                f"suite '{self.title or 'transfer'}': '{inner.name}' needs the judged model; transfer takes attacks "
                "such as pgd-20"
            )
        stages = tuple(
            replace(stage, attack=FromSurrogate(surrogate=self.surrogate, inner=stage.attack)) for stage in inner.stages
        )
        return Plan(self.title or f"{inner.name} from {self.surrogate}", stages)


@component("suite", "bf16_first")
class LowPrecisionFirst:
    """A suite in bfloat16, then as it is on what survived: every image is judged in float32.

    What the suite fools by itself, this fools, too, since its own stages meet all that is left.
    """

    of: AnySuite
    """The suite."""
    title: str | None = None
    """Of the result; null: made from the attacks."""

    def plan(self, threat: LpBall) -> Plan:
        inner = self.of.plan(threat)
        first = tuple(
            replace(stage, name=f"{stage.name} in bf16", attack=LowPrecision(inner=stage.attack))
            for stage in inner.stages
        )
        return replace(inner, name=self.title or f"{inner.name} after bf16", stages=(*first, *inner.stages))


@component("suite", "autoattack")
class AutoAttack:
    """AutoAttack (Croce and Hein 2020), a stage for each target; in L1 the standard version of Croce and Hein 2021."""

    version: Literal["standard", "plus", "rand"] = "standard"
    """Its authors' name for a set of attacks."""
    title: str | None = None
    """Of the result; null: made from the attacks."""

    def plan(self, threat: LpBall) -> Plan:
        name = self.title or ("autoattack" if self.version == "standard" else f"autoattack-{self.version}")
        in_l1 = self.version == "standard" and threat.norm == "1"
        return Plan(name, _AUTOATTACK["standard in L1" if in_l1 else self.version])


@component("suite", "fast")
class Fast:
    """Gradients on all images in the order of their yield; AutoAttack itself, whole, on a sample of what they left."""

    precision: Annotated[UnitInterval, Field(ge=1e-6, lt=1)] | None = None
    """How finely AutoAttack's result is bounded, as a fraction of all images."""
    title: str | None = None
    """Of the result; null: made from the attacks."""

    def plan(self, threat: LpBall) -> Plan:
        stages = (
            Stage("apgd-pm", APGD(loss="pm")),
            *(Stage(f"apgd-malt/{i + 1}", APGD(loss="dlr"), i + 2, "nearest") for i in range(FAST_TARGETS)),
        )
        judges = AutoAttack().plan(threat).stages
        sampled = tuple(replace(stage, name=f"sample: {stage.name}") for stage in judges)
        return Plan(self.title or "fast", stages, sampled, self.precision)


FAST_TARGETS = 4
"""As few as the gain warrants: docs/benchmarks-fast.md shows what each target takes, and a fifth took nothing."""

_SQUARE = Stage("square", Square())
_TARGETED = (*targeted("apgd-t", APGD(loss="dlr")), *targeted("fab-t", FAB()))
_CE_X5 = Stage("apgd-ce-x5", Restarts(inner=APGD(loss="ce"), times=5))
_AUTOATTACK: dict[str, tuple[Stage, ...]] = {
    "standard": (Stage("apgd-ce", APGD(loss="ce")), *_TARGETED, _SQUARE),
    "standard in L1": (_CE_X5, *targeted("apgd-t", APGD(loss="dlr"), 5), *targeted("fab-t", FAB()), _SQUARE),
    "plus": (
        _CE_X5,
        Stage("apgd-dlr-x5", Restarts(inner=APGD(loss="dlr"), times=5)),
        Stage("fab-x5", Restarts(inner=FAB(), times=5)),
        _SQUARE,
        *_TARGETED,
    ),
    "rand": tuple(Stage(f"apgd-{loss}-eot20", APGD(loss=loss, eot=20)) for loss in ("ce", "dlr")),
}

"""A plan in words."""

import dataclasses
from contextlib import suppress
from typing import Any

from robustvit.core.errors import UserError
from robustvit.core.numbers import short_count
from robustvit.core.progress import format_seconds
from robustvit.core.world import World
from robustvit.planning.plan import PhasePlan, Plan
from robustvit.training.parts import Parts

ROOM = 0.95
"""Fraction of a device's memory that a training may take."""


def plan_text(plan: Plan, price: float | None = None, grams: float | None = None) -> str:
    """A line for each fact; `price` of a device and hour, `grams` of CO2 for a kilowatt hour."""
    lines = [("recipe", f"{plan.recipe}, {short_count(plan.parameters)} parameters")]
    lines += [("phase", _phase_text(phase)) for phase in plan.phases]
    lines.append(("work", f"{plan.operations / 1e15:,.3g} PFLOP, attacks and validation included"))
    lines.append(("memory", _memory_text(plan)))
    lines.append(("time", _time_text(plan)))
    if plan.kilowatt_hours is not None:
        lines.append(("energy", _energy_text(plan, grams)))
    if price is not None:
        low, high = (hours * price for hours in plan.device_hours)
        lines.append(("cost", f"{_range(low, high)} at {price:g} a device and hour"))
    return "\n".join(f"{name:<8}{text}" for name, text in lines)


def plan_facts(plan: Plan, price: float | None = None, grams: float | None = None) -> dict[str, Any]:
    """The same as numbers, for JSON; of ranges, the least and the most."""
    energy = plan.kilowatt_hours
    return {
        **dataclasses.asdict(plan),
        "operations": plan.operations,
        "memory": plan.memory,
        "kilowatt_hours": energy,
        "kilograms_of_co2": None if energy is None or grams is None else [each * grams / 1000 for each in energy],
        "cost": None if price is None else [hours * price for hours in plan.device_hours],
    }


def _phase_text(phase: PhasePlan) -> str:
    each, parts = phase.passes, f" in {phase.parts} parts" if phase.parts > 1 else ""
    passes = f"{each.forward:.3g} forward, {each.input_gradient:.3g} back to the pixels, {each.gradient:.3g} to the"
    steps = f"{phase.steps:,} steps of {phase.rows:,} images{parts}"
    return f"{phase.name}: {steps}; passes of an image: {passes} weights"


def _memory_text(plan: Plan) -> str:
    total = sum(plan.memory.values())
    largest = sorted(plan.memory.items(), key=lambda item: -item[1])
    named = ", ".join(f"{name} {_gigabytes(size)}" for name, size in largest if size > 0.01 * total)
    each = " on each device" if plan.count > 1 else ""
    text = f"{_gigabytes(total)}{each}: {named}"
    if plan.available is None:
        return text
    if total <= ROOM * plan.available:
        return f"{text}; {_gigabytes(plan.available)} are there"
    return f"{text}; does not fit into {_gigabytes(plan.available)}{_remedy(plan)}"


def _remedy(plan: Plan) -> str:
    """The least accumulation that fits, or what else would help; each device has as many parts as the others."""
    for parts in range(plan.count, min(phase.batch_size for phase in plan.phases) + 1, plan.count):
        with suppress(UserError):  # a batch that can't be cut so
            total = max(_total_in(phase, parts, plan.count) for phase in plan.phases)
            if total <= ROOM * (plan.available or 0):
                return f"; accumulate={parts} would take {_gigabytes(total)}"
    return "; activation_checkpointing=true, a smaller model, or a device with more memory is needed"


def _total_in(phase: PhasePlan, parts: int, count: int) -> float:
    """Bytes of memory that a phase would take with another `accumulate`."""
    now, then = (Parts.of(phase.rows, wanted, World(0, count)) for wanted in (phase.parts, parts))
    more = {"activations": then.size / now.size, "images": len(then.own_rows) / len(now.own_rows)}
    return max(sum(size * more.get(name, 1.0) for name, size in moment.items()) for moment in phase.moments)


def _time_text(plan: Plan) -> str:
    low, high = (format_seconds(seconds) for seconds in plan.seconds)
    if plan.is_measured:
        return f"{low} on this machine ({plan.device}), from passes measured just now"
    assert plan.utilization is not None
    least, most = (f"{100 * used:g}" for used in plan.utilization)
    return f"{low} to {high} on {plan.device}, if {most} to {least} % of its peak rate is reached"


def _energy_text(plan: Plan, grams: float | None) -> str:
    assert plan.kilowatt_hours is not None
    low, high = plan.kilowatt_hours
    text = f"{_range(low, high)} kWh, devices alone at {plan.watts:g} W"
    if grams is None:
        return text
    return f"{text}; {_range(low * grams / 1000, high * grams / 1000)} kg CO2 at {grams:g} g a kWh"


def _range(low: float, high: float) -> str:
    shown = [f"{value:,.0f}" if value >= 100 else f"{value:.3g}" for value in (low, high)]
    return shown[0] if shown[0] == shown[1] else " to ".join(shown)


def _gigabytes(size: float) -> str:
    return f"{size / 1e9:.3g} GB"

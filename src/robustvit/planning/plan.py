"""What training a recipe takes: passes, operations, memory, hours, energy and cost."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from timm.models import VisionTransformer

from robustvit.attacks import passes_of
from robustvit.core.world import World, resolve_device
from robustvit.evaluation import Attacked, evaluator_from
from robustvit.models.cost import num_parameters
from robustvit.models.create import describe
from robustvit.models.normalize import backbone_of, matches, parameter_names
from robustvit.models.precision import checkpoint_activations
from robustvit.planning.hardware import OTHERS, PLAIN, Hardware, hardware_from
from robustvit.planning.memory import moments_bytes
from robustvit.planning.opening import TrainingData, open_data
from robustvit.planning.passes import Passes, count_passes
from robustvit.planning.timing import available_bytes, phase_seconds
from robustvit.planning.work import Work, count_work
from robustvit.training.opening import check_shardable
from robustvit.training.parts import Parts
from robustvit.training.recipe import Phase, Recipe, recipe_from


@dataclass(frozen=True)
class PhasePlan:
    """One phase of the training."""

    name: str
    steps: int
    rows: int
    """Images of a step, repeated ones included."""
    batch_size: int
    """Without repeated ones: the recipe takes at most so many parts."""
    parts: int
    """That a step is computed in, on all devices."""
    passes: Passes
    """Of one image in one step."""
    work: Work
    """Of one image's passes."""
    validation: float
    """Forward and backward passes of all validations, at most."""
    moments: tuple[Mapping[str, float], ...]
    """Bytes on each device by kind, at each moment that may be the peak."""

    @property
    def memory(self) -> Mapping[str, float]:
        """At the peak."""
        return max(self.moments, key=lambda moment: sum(moment.values()))

    @property
    def num_passes(self) -> float:
        each = self.passes
        return self.steps * self.rows * (each.forward + each.input_gradient + each.gradient) + self.validation

    @property
    def operations(self) -> float:
        each, work = self.passes, self.work
        image = each.forward * work.forward + each.input_gradient * work.input_gradient + each.gradient * work.gradient
        return self.steps * self.rows * image + self.validation * work.forward


@dataclass(frozen=True)
class Plan:
    """Of a whole training."""

    recipe: str
    parameters: int
    phases: tuple[PhasePlan, ...]
    device: str
    """Where it would run."""
    seconds: tuple[float, float]
    """The least and the most."""
    is_measured: bool
    """Whether `seconds` follow from a measurement here; else from the peak rate of the hardware."""
    count: int = 1
    """Of devices."""
    available: float | None = None
    """Bytes of memory of a device; None: unknown."""
    watts: float | None = None
    """Of a device."""
    utilization: tuple[float, float] | None = None
    """Fractions of the peak rate that `seconds` assume."""

    @property
    def operations(self) -> float:
        return sum(phase.operations for phase in self.phases)

    @property
    def memory(self) -> Mapping[str, float]:
        """Bytes on each device by kind, of the phase that takes most."""
        return max((phase.memory for phase in self.phases), key=lambda memory: sum(memory.values()))

    @property
    def hours(self) -> tuple[float, float]:
        return self.seconds[0] / 3600, self.seconds[1] / 3600

    @property
    def device_hours(self) -> tuple[float, float]:
        return self.hours[0] * self.count, self.hours[1] * self.count

    @property
    def kilowatt_hours(self) -> tuple[float, float] | None:
        """Of the devices alone, at their full power."""
        if self.watts is None:
            return None
        return self.device_hours[0] * self.watts / 1000, self.device_hours[1] * self.watts / 1000


def plan(
    recipe: Recipe | str | Path | Mapping[str, Any],
    overrides: Sequence[str] = (),
    *,
    hardware: Hardware | str | None = None,
    images: int | None = None,
    utilization: tuple[float, float] | None = None,
) -> Plan:
    """Plan a training on this machine, which is measured for some seconds, or on hardware, such as "a100-80gb:8".

    Named hardware has the rate of the recipe's precision. `images`: so many training images, where the data are not
    here. `utilization`: fractions of the peak rate of the hardware, the lower and the upper one.
    """
    checked = recipe_from(recipe, overrides)
    if isinstance(hardware, str):
        hardware = hardware_from(hardware, checked.precision)
    device = resolve_device(checked.device) if hardware is None else "cuda"
    checked, data = checked.resolved(device), open_data(checked, images)
    count = 1 if hardware is None else hardware.count
    phases = tuple(_plan_phase(checked, phase, data, device, count) for phase in checked.phases)
    with torch.device("meta"):
        model = checked.model.build()
    parameters = num_parameters(model)
    if hardware is None:
        seconds = sum(
            phase_seconds(checked, phase, planned.passes, planned.validation, data, device)
            for phase, planned in zip(checked.phases, phases, strict=True)
        )
        return Plan(checked.name, parameters, phases, device, (seconds, seconds), True, 1, available_bytes(device))
    used = utilization or (PLAIN if isinstance(backbone_of(model), VisionTransformer) else OTHERS)
    rate, operations = hardware.flops * count, sum(phase.operations for phase in phases)
    return Plan(
        checked.name, parameters, phases, str(hardware), (operations / (rate * used[1]), operations / (rate * used[0])),
        False, count, hardware.memory, hardware.watts, used,
    )  # fmt: skip


def _plan_phase(recipe: Recipe, phase: Phase, data: TrainingData, device: str, count: int) -> PhasePlan:
    with torch.device("meta"):
        model, stand_in = recipe.model.build(), recipe.model.build()
    for name, parameter in parameter_names(model):
        parameter.requires_grad_(matches(name, phase.all_trainable))
    if recipe.activation_checkpointing:
        checkpoint_activations(model)
    num_classes: int = describe(model)["num_classes"]
    passes = count_passes(stand_in, phase, recipe.threat, data.img_size, num_classes)
    work, rows = count_work(model, data.img_size, recipe.precision), data.rows(phase)
    is_sharded = recipe.shard and count > 1
    if is_sharded:
        check_shardable(recipe, model)
    parts = Parts.of(rows, phase.parts, World(0, count))
    moments = moments_bytes(model, phase, passes, work, parts, data.img_size, device, is_sharded)
    validation, steps = _validation_passes(recipe, phase, data.held), data.steps(phase)
    return PhasePlan(phase.name, steps, rows, phase.batch_size, parts.count, passes, work, validation, moments)


def _validation_passes(recipe: Recipe, phase: Phase, held: int) -> float:
    """At most, since attacks end early on images that they fool."""
    evaluator = evaluator_from(recipe.validation.suite, recipe.threat)
    if not held or not isinstance(evaluator, Attacked):
        return 0.0
    stages = evaluator.suite.plan(recipe.threat).every
    times = -(-phase.epochs // recipe.validation.every)
    return times * held * (1 + sum(passes_of(stage.attack) or 0 for stage in stages))

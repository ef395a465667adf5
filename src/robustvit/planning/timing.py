"""Seconds of passes on the device that is here, by a short measurement."""

import copy
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import nn

from robustvit.core.streams import sample_streams, seeded_globals
from robustvit.models.create import describe
from robustvit.models.modes import attacking, set_training
from robustvit.models.normalize import matches, parameter_names
from robustvit.models.precision import checkpoint_activations, compute_in
from robustvit.planning.opening import TrainingData
from robustvit.planning.passes import Passes, count_passes
from robustvit.training.opening import phase_batches
from robustvit.training.recipe import Phase, Recipe, Turn
from robustvit.training.step import take_step

LONGEST = 5.0
"""Seconds of a step on a part of the batch that is still taken to measure it."""
BUDGET = 1.0
"""Seconds for each of the measurements."""
MOST = 20


@dataclass(frozen=True)
class Seconds:
    """Of one image's passes; the backward ones without the forward pass that they follow."""

    forward: float
    input_gradient: float
    gradient: float
    step: float
    """Of the optimizer."""

    def of_step(self, passes: Passes, images: int) -> float:
        """A training step on so many images, without what is no pass."""
        searched = passes.forward * self.forward + passes.input_gradient * self.input_gradient
        return images * (searched + passes.gradient * self.gradient) + self.step


def phase_seconds(
    recipe: Recipe, phase: Phase, passes: Passes, validation: float, data: TrainingData, device: str
) -> float:
    """Of a whole phase, by measuring a part of a batch, the optimizer and the making of a batch."""
    with seeded_globals(recipe.seed, "weights"):
        model = recipe.model.build().to(device)
    for name, parameter in parameter_names(model):
        parameter.requires_grad_(matches(name, phase.all_trainable))
    compute_in(model, recipe.precision, recipe.shard)
    if recipe.activation_checkpointing:
        checkpoint_activations(model)
    rows = data.rows(phase)
    shape, optimizer = (3, data.img_size, data.img_size), phase.optimizer.build(model)
    images = -(-rows // phase.parts)
    each = measure_seconds(model, optimizer, shape, images)
    step = each.of_step(passes, rows)
    with torch.device("meta"):
        stand_in = recipe.model.build()
    num_classes: int = describe(model)["num_classes"]
    middle = each.of_step(count_passes(stand_in, phase, recipe.threat, data.img_size, num_classes, moments=1), images)
    if middle < LONGEST:  # searches do more than pass images through the network
        step *= _step_seconds(recipe, phase, model, optimizer, shape, images) / middle
    if phase.ema is not None:
        average, rate = copy.deepcopy(model), phase.ema.rate(1, 1)
        step += _middle(lambda: phase.ema.update(average, model, rate), lambda: None)  # type: ignore[union-attr]
    if data.pictures is not None:
        making = _batch_seconds(recipe, phase, data, num_classes)
        step = step + making if recipe.workers == 0 else max(step, making / recipe.workers)
    return data.steps(phase) * step + validation * each.forward


def _step_seconds(
    recipe: Recipe,
    phase: Phase,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    shape: tuple[int, ...],
    images: int,
) -> float:
    """A whole step on random pixels in the middle of the phase, on average over its turns."""
    device = next(model.parameters()).device
    num_classes: int = describe(model)["num_classes"]
    x, y = torch.rand(images, *shape, device=device), torch.arange(images, device=device) % num_classes
    if phase.mixing is not None and phase.mixing.is_on:
        y = torch.nn.functional.one_hot(y, num_classes).float()
    whole, random = replace(phase, accumulate=1, batch_size=images), sample_streams(0, torch.arange(images)).to(device)
    threat = recipe.threat.scaled(phase.eps_schedule(0.5) if phase.eps_schedule else 1.0)
    for group in optimizer.param_groups:
        group["lr"] = 0.0

    def taken(turn: Turn) -> float:
        with seeded_globals(0, "timing"):
            return _middle(lambda: take_step(model, optimizer, whole, turn, x, y, threat, random, 0.5), lambda: None)

    return sum(map(taken, phase.turns)) / len(phase.turns)


def _batch_seconds(recipe: Recipe, phase: Phase, data: TrainingData, num_classes: int) -> float:
    assert data.pictures is not None
    batches = phase_batches(recipe, phase, data.pictures, num_classes)
    steps = iter(range(1, len(batches)))
    return _middle(lambda: batches[next(steps, 0)], lambda: None)


def available_bytes(device: str) -> float | None:
    """Memory of a device."""
    if device.startswith("cuda"):
        return float(torch.cuda.get_device_properties(device).total_memory)
    if device == "cpu" and "SC_PHYS_PAGES" in os.sysconf_names:
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return None


def measure_seconds(model: nn.Module, optimizer: torch.optim.Optimizer, shape: tuple[int, ...], images: int) -> Seconds:
    """On random pixels of this shape, so many images at once."""
    device = next(model.parameters()).device
    x = torch.rand(images, *shape, device=device)

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    def forward() -> None:
        with torch.no_grad():
            model(x)

    def input_gradient() -> None:
        point = x.clone().requires_grad_()
        torch.autograd.grad(model(point).square().sum(), point)

    def gradient() -> None:
        torch.autograd.backward(model(x).square().sum())

    with seeded_globals(0, "timing"):
        set_training(model)
        with attacking(model, "eval"):
            once, search = (_middle(work, wait) for work in (forward, input_gradient))
        both = _middle(gradient, wait)
        step = _middle(optimizer.step, wait)
    optimizer.zero_grad(set_to_none=True)
    return Seconds(once / images, max(0.0, search - once) / images, max(0.0, both - once) / images, step)


def _middle(work: Callable[[], object], wait: Callable[[], None]) -> float:
    """The median of repetitions after the first, which may have to allocate."""
    times: list[float] = []
    begin = time.perf_counter()
    while len(times) < 2 or (time.perf_counter() - begin < BUDGET and len(times) < MOST):
        wait()
        start = time.perf_counter()
        work()
        wait()
        times.append(time.perf_counter() - start)
    kept = sorted(times[1:])
    return kept[len(kept) // 2]

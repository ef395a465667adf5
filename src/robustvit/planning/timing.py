"""Seconds of passes on the device that is here, by a short measurement."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from robustvit.core.streams import seeded_globals
from robustvit.models.create import describe
from robustvit.models.modes import attacking, set_training
from robustvit.models.normalize import matches, parameter_names
from robustvit.models.precision import checkpoint_activations, compute_in
from robustvit.planning.opening import TrainingData
from robustvit.planning.passes import Passes
from robustvit.training.opening import phase_batches
from robustvit.training.recipe import Phase, Recipe

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


def phase_seconds(
    recipe: Recipe, phase: Phase, passes: Passes, validation: float, data: TrainingData, device: str
) -> float:
    """Of a whole phase, by measuring a part of a batch, the optimizer and the making of a batch."""
    with seeded_globals(recipe.seed, "weights"):
        model = recipe.model.build().to(device)
    for name, parameter in parameter_names(model):
        parameter.requires_grad_(matches(name, phase.all_trainable))
    compute_in(model, recipe.precision)
    if recipe.activation_checkpointing:
        checkpoint_activations(model)
    rows = data.rows(phase)
    shape, optimizer = (3, data.img_size, data.img_size), phase.optimizer.build(model)
    each = measure_seconds(model, optimizer, shape, -(-rows // phase.parts))
    image = passes.forward * each.forward + passes.input_gradient * each.input_gradient
    step = rows * (image + passes.gradient * each.gradient) + each.step
    if data.pictures is not None:
        making = _batch_seconds(recipe, phase, data, describe(model)["num_classes"])
        step = step + making if recipe.workers == 0 else max(step, making / recipe.workers)
    return data.steps(phase) * step + validation * each.forward


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

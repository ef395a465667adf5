"""A phase's batches as its recipe wants them, checked before training starts."""

import copy

import torch
from torch import nn

from robustvit.core.errors import UserError, first_line
from robustvit.core.generators import seeded_globals
from robustvit.core.streams import sample_streams
from robustvit.data.base import Images, as_pixels
from robustvit.data.feed import Batches
from robustvit.data.mixture import Mixture
from robustvit.training.recipe import Phase, Recipe


def phase_batches(recipe: Recipe, phase: Phase, images: Images, num_classes: int) -> Batches:
    generated, ratio = None, 0.0
    if phase.generated is not None:
        generated, ratio = phase.generated.open(images, num_classes), phase.generated.ratio
    mixture = Mixture(images, phase.batch_size, num_classes, recipe.seed, phase.name, generated, ratio)
    return Batches(mixture, phase.epochs, phase.augmentation, phase.mixing, phase.augmentation_schedule, phase.repeats)


def check_batches(recipe: Recipe, images: Images, model: nn.Module, num_classes: int, device: str) -> None:
    for phase in recipe.phases:
        phase_batches(recipe, phase, images, num_classes)
        if phase.mixing is not None and phase.mixing.is_on:
            _try_soft_labels(recipe, phase, images, model, num_classes, device)


def _try_soft_labels(
    recipe: Recipe, phase: Phase, images: Images, model: nn.Module, num_classes: int, device: str
) -> None:
    """Two images with mixed labels through the objective: it knows itself what it can take."""
    rows = torch.arange(min(2, len(images)))
    x = as_pixels(images.take(rows)[0]).to(device)
    y = torch.full((len(x), num_classes), 1 / num_classes, device=device)
    random = sample_streams(recipe.seed, rows).to(device)
    tried = copy.deepcopy(model)
    try:
        with seeded_globals(recipe.seed, "soft labels"):
            perturbed = phase.objective.perturb(tried, x, y, recipe.threat, random=random)
            phase.objective.loss(tried, x, perturbed, y)
    except Exception as error:  # whatever losses raise that look for an index
        name = getattr(phase.objective, "name", type(phase.objective).__name__)
        raise UserError(
            f"recipe.mixing: the objective '{name}' takes no soft labels ({first_line(error)}); set mixing: null"
        ) from error

"""What a recipe names, opened and checked to fit before the first step."""

import torch

from robustvit.core.devices import resolve_device
from robustvit.core.errors import UserError
from robustvit.core.generators import seeded_globals
from robustvit.data.base import Images, Subset, hold_out
from robustvit.evaluation.subject import Subject
from robustvit.models import Normalized
from robustvit.models.names import matches, parameter_names
from robustvit.objectives.base import check
from robustvit.training.batches import check_batches
from robustvit.training.recipe import Phase, Recipe


def open_recipe(recipe: Recipe, device: str | None = None) -> tuple[Images, Subset | None, Normalized]:
    """The training images, those held out where the recipe validates, and the new model: all checked to fit."""
    device = device or resolve_device(recipe.device)
    images = recipe.data.open("train")
    if len(images) == 0:
        raise UserError(f"{images.title}: holds no images")
    with seeded_globals(recipe.seed, "weights"):
        model = recipe.model.build().to(device)
    with Subject(model, images, torch.tensor([0]), recipe.seed, 1, device).ready() as subject:
        num_classes = subject.num_classes
    for phase in recipe.phases:
        if not any(trains(name, phase) for name, _ in parameter_names(model)):
            raise UserError(
                f"recipe.phases: '{phase.name}' trains nothing: no parameter matches {list(phase.trainable)}"
            )
        phase.optimizer.build(model)
        for event in phase.events:
            event.check(model)
        check(phase.objective, model)
    check_batches(recipe, images, model, num_classes, device)
    if not recipe.validation.hold_out:
        return images, None, model
    return *hold_out(images, recipe.validation.hold_out, recipe.seed, recipe.validation.which), model


def trains(name: str, phase: Phase) -> bool:
    """Whether the phase moves the parameter of this name."""
    return matches(name, phase.trainable)

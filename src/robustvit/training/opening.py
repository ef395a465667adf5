"""What a recipe names, opened and checked to fit before the first step."""

import copy

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from robustvit.core.component import to_dict
from robustvit.core.errors import UserError, first_line
from robustvit.core.streams import sample_streams, seeded_globals, seeded_subset
from robustvit.core.world import resolve_device
from robustvit.data.base import Images, Subset, as_pixels, hold_out
from robustvit.data.feed import Batches
from robustvit.data.mixture import Mixture
from robustvit.evaluation.subject import Subject
from robustvit.models import Normalized
from robustvit.models.heads import check_head, through
from robustvit.models.normalize import matches, parameter_names
from robustvit.models.start import Started
from robustvit.objectives.base import check
from robustvit.training.recipe import Phase, Recipe, Turn

SHARDABLE = ("sgd", "adamw", "lion", "lamb")
"""Optimizers that treat a shard as they treat the whole; adamp, for one, hangs."""


def open_recipe(recipe: Recipe, device: str | None = None) -> tuple[Images, Subset | None, Normalized]:
    """The training images, those held out where the recipe validates, and the new model: all checked to fit."""
    device = device or resolve_device(recipe.device)
    images, held = open_images(recipe)
    with seeded_globals(recipe.seed, "weights"):
        model = recipe.model.build().to(device)
    with Subject(model, images, torch.tensor([0]), recipe.seed, 1, device).ready() as subject:
        num_classes = subject.num_classes
    if recipe.shard:
        check_shardable(recipe, model)
    for phase in recipe.phases:
        for turn in phase.turns:
            _check_turn(phase, turn, model)
        phase.optimizer.build(model)
        for event in phase.events:
            event.check(model)
        phase_batches(recipe, phase, images, num_classes)
        for turn in phase.turns if phase.mixing is not None and phase.mixing.is_on else ():
            _try_soft_labels(recipe, turn, images, model, num_classes)
    return images, held, model


def open_images(recipe: Recipe) -> tuple[Images, Subset | None]:
    """The training images, and those held out where the recipe validates."""
    images: Images = recipe.data.open("train")
    if len(images) == 0:
        raise UserError(f"{images.title}: holds no images")
    held, count = None, recipe.train_images
    if recipe.validation.hold_out:
        images, held = hold_out(images, recipe.validation.hold_out, recipe.seed, recipe.validation.which)
    if count is not None:
        if count > len(images):
            left = f"{len(images)} that are not held out" if held else f"only {len(images)}"
            raise UserError(f"train_images: {images.title} has {left}, not {count}")
        images = Subset(images, seeded_subset(len(images), count, recipe.seed, "train-images"), images.title)
    return images, held


def _check_turn(phase: Phase, turn: Turn, model: nn.Module) -> None:
    if not any(matches(name, turn.trainable) for name, _ in parameter_names(model)):
        why = f"no parameter matches {list(turn.trainable)}"
        raise UserError(f"recipe.phases: '{phase.name}' trains nothing: {why}")
    if turn.head is not None:
        try:
            check_head(model, turn.head)
        except UserError as error:
            raise UserError(f"recipe.phases: '{phase.name}': {error}") from None
    check(turn.objective, model)


def check_shardable(recipe: Recipe, model: nn.Module) -> None:
    """Refuse by name what sharded networks can't have."""
    for phase in recipe.phases:
        if phase.optimizer.opt not in SHARDABLE:
            known = ", ".join(SHARDABLE)
            raise UserError(f"recipe.shard: the optimizer '{phase.optimizer.opt}' does not work on shards; use {known}")
        if phase.events:
            raise UserError("recipe.shard: events change the network of one process alone; leave them out")
        if phase.alternate is not None or set(phase.all_trainable) != {"*"}:
            raise UserError("recipe.shard: all parameters must train in every step; leave trainable and alternate out")
    if any(isinstance(module, _BatchNorm) for module in model.modules()):
        raise UserError("recipe.shard: statistics of batch norms are not shared between shards; use a model without")
    if recipe.compile:
        raise UserError("recipe.shard: goes without compile; set compile: false")


def never_trained(recipe: Recipe, model: nn.Module, started: Started | None = None) -> str:
    """What is wrong with parameters that no step moves, where they don't start from trained weights; else empty."""
    patterns = [pattern for phase in recipe.phases for pattern in phase.all_trainable]
    frozen = [name for name, _ in parameter_names(model) if not matches(name, patterns)]
    if started is not None:
        frozen = [name for name in frozen if name in started.random]
    if not frozen:
        return ""
    what = f"recipe.start: {len(frozen)} tensors, such as {frozen[0]}, are drawn at random and never trained"
    if started is not None:
        return f"{what}: {started.source} lacks them; start from a run that trained them, or add them to trainable"
    return f"{what}; set start.weights to a trained model, such as timm's name of one or a run folder"


def phase_batches(recipe: Recipe, phase: Phase, images: Images, num_classes: int) -> Batches:
    generated, ratio = None, 0.0
    if phase.generated is not None:
        generated, ratio = phase.generated.open(images, num_classes), phase.generated.ratio
    if phase.batch_size > len(images) and not ratio:
        there = f"{images.title} has only {len(images)} to train on"
        raise UserError(f"recipe.batch_size: {phase.batch_size} images, where {there}; choose at most so many")
    mixture = Mixture(images, phase.batch_size, num_classes, recipe.seed, phase.name, generated, ratio)
    return Batches(mixture, phase.epochs, phase.augmentation, phase.mixing, phase.augmentation_schedule, phase.repeats)


def _try_soft_labels(recipe: Recipe, turn: Turn, images: Images, model: nn.Module, num_classes: int) -> None:
    """Two images with mixed labels through the objective: it knows itself what it can take."""
    rows, device = torch.arange(min(2, len(images))), next(model.parameters()).device
    x = as_pixels(images.take(rows)[0]).to(device)
    y = torch.full((len(x), num_classes), 1 / num_classes, device=device)
    random = sample_streams(recipe.seed, rows).to(device)
    tried = through(copy.deepcopy(model), turn.head)
    try:
        with seeded_globals(recipe.seed, "soft labels"):
            perturbed = turn.objective.perturb(tried, x, y, recipe.threat, random=random)
            turn.objective.loss(tried, x, perturbed, y)
    except Exception as error:  # whatever a loss raises that needs class indices
        problem = f"the objective '{to_dict(turn.objective)['name']}' takes no soft labels ({first_line(error)})"
        raise UserError(f"recipe.mixing: {problem}; set mixing: null") from error

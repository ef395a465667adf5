"""Training a denoiser: images with noise of a random level, and the network that removes it."""

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from robustvit.core.component import component
from robustvit.core.errors import UserError
from robustvit.core.journal import Row
from robustvit.core.streams import seeded_globals
from robustvit.core.world import World
from robustvit.data.base import Images, as_pixels
from robustvit.data.feed import Batch, Batches, RowsOf
from robustvit.data.mixture import Mixture
from robustvit.synthesis.augment import AugmentationPipe
from robustvit.synthesis.denoiser import Denoiser, DenoiserSettings, denoising_losses, to_unit
from robustvit.synthesis.recipe import TASK, DenoisePhase, DenoiseRecipe
from robustvit.training.classify import explain_errors
from robustvit.training.image_task import ImageTask
from robustvit.training.optimizer import Ema
from robustvit.training.recorder import AnyRecorder
from robustvit.training.task import Position, StepResult


@component("task", TASK)
class Denoising:
    """A denoiser of images, from which `robustvit generate` samples new ones (EDM, Karras et al. 2022)."""

    recipe_type: ClassVar[type[DenoiseRecipe]] = DenoiseRecipe

    def build(self, recipe: DenoiseRecipe, recorder: AnyRecorder, world: World) -> "Denoise":
        return Denoise(recipe, recorder, world)


class Denoise(ImageTask):
    """The denoiser, its average and optimizer."""

    model: Denoiser

    def __init__(self, recipe: DenoiseRecipe, recorder: AnyRecorder, world: World) -> None:
        images, made = open_data(recipe)
        super().__init__(images, made.num_classes, recorder, world)
        self.recipe = recipe
        with seeded_globals(recipe.seed, "weights"):
            self.model = made.build().to(self.device)
        for phase in recipe.phases:
            phase.optimizer.build(self.model)
        self._prepare([(self._batches(phase), phase.accumulate) for phase in recipe.phases], recipe.gradient_sum)

    def _batches(self, phase: DenoisePhase) -> Batches:
        mixture = Mixture(self.images, phase.batch_size, self.num_classes, self.recipe.seed, phase.name)
        return Batches(mixture, phase.epochs)

    def initialize(self) -> None: ...

    def begin_phase(self, number: int) -> Batches | RowsOf:
        self.phase: DenoisePhase = self.recipe.phases[number]
        self.optimizer = self.phase.optimizer.build(self.model)
        return self._begin(number, self.phase.ema is not None)

    def begin_epoch(self, position: Position) -> list[Row]:
        return []

    def step(self, batch: Batch, position: Position) -> StepResult:
        phase = self.phase
        lr = phase.optimizer.peak(phase.batch_size) * phase.schedule(position.progress)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        with explain_errors(phase.batch_size, self.parts.count):
            losses, is_finite = self._add_gradients(batch, position)
        self.health.see_step(is_finite, 0.0, self.parts.rows, attacked=False)
        if is_finite:
            self.optimizer.step()
            if self.average is not None and phase.ema is not None:
                Ema().update(self.average, self.model, phase.ema.rate(position.step, phase.batch_size))
        skipped = {"skipped_steps": self.health.skipped} if self.health.skipped else {}
        return StepResult({"lr": lr, **skipped}, {"loss": losses} if is_finite else {})

    def _add_gradients(self, batch: Batch, position: Position) -> tuple[Tensor, bool]:
        """Losses of this process's images; their gradient is that of the mean over the whole batch, a sum over pixels
        as in the paper. Whether all of it is finite."""
        x, y = to_unit(as_pixels(batch.images.to(self.device))), batch.y.to(self.device)
        random = self.batches.streams(position.step, batch.ids).to(self.device).child("denoising")
        self.model.train()
        self.optimizer.zero_grad(set_to_none=True)
        losses, key = [], (self.recipe.seed, self.phase.name, "step", position.step)

        def backward(number: int, rows: slice) -> bool:
            own, images, augment_labels = random[rows], x[rows], None
            if self.phase.augmentation is not None:
                images, augment_labels = self.phase.augmentation(images, own.child("augmentation"))
            sigma, noise = self.recipe.noise.draw(own), own.normal(images.shape[1:], at="noise")
            with self.parts.seeded(number, key):
                part = denoising_losses(self.model, images, y[rows], sigma, noise, augment_labels)
                torch.autograd.backward(part.sum() * (x[0].numel() / self.parts.rows))
            losses.append(part.detach())
            return bool(part.isfinite().all())

        is_finite = self.parts.add_gradients(self.model, backward)
        limit = self.phase.clip_norm if self.phase.clip_norm is not None else math.inf
        norm = float(nn.utils.clip_grad_norm_(self.model.parameters(), limit))
        return torch.cat(losses), is_finite and math.isfinite(norm)

    def end_step(self, result: StepResult) -> None: ...

    def end_epoch(self, position: Position) -> None: ...


def open_data(recipe: DenoiseRecipe) -> tuple[Images, DenoiserSettings]:
    """The training images and the denoiser that they need: checked to fit."""
    images = recipe.data.open("train")
    if len(images) == 0:
        raise UserError(f"{images.title}: holds no images")
    if images.num_classes is None:
        raise UserError(f"{images.title}: how many classes it has isn't known; set data.num_classes")
    height, width = images.take(torch.tensor([0]))[0].shape[2:]
    if height != width:
        raise UserError(f"{images.title}: images of {width}x{height} pixels; a denoiser needs square ones")
    for phase in recipe.phases:
        if phase.batch_size > len(images):
            there = f"{images.title} has only {len(images)} to train on"
            raise UserError(f"recipe.batch_size: {phase.batch_size} images, where {there}; choose at most so many")
    labels = AugmentationPipe.num_labels if any(phase.augmentation for phase in recipe.phases) else 0
    return images, DenoiserSettings(width, images.num_classes, recipe.network, labels, recipe.sigma_data)

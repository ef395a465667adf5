"""The recipe of a denoiser."""

from dataclasses import field

from robustvit.core.component import build, settings
from robustvit.core.numbers import Count, Positive, UnitInterval
from robustvit.data.base import AnyDataset
from robustvit.synthesis.augment import AugmentationPipe
from robustvit.synthesis.denoiser import NoiseLevels
from robustvit.synthesis.network import AnyNetwork, DdpmPlusPlus
from robustvit.training.base_recipe import AnyTask, BasePhase, BaseRecipe
from robustvit.training.optimizer import Optimizer
from robustvit.training.schedules import AnySchedule, LinearWarmup

TASK = "denoise"


@settings
class HalfLife:
    """A moving average whose weights halve after so many images, at first a fraction of those seen so far."""

    images: Count = 500_000
    """Karras et al. 2022 use half a million."""
    rampup: UnitInterval = 0.05
    """The half-life is at most this fraction of the images seen."""

    def rate(self, step: int, batch_size: int) -> float:
        """What is kept of the average at a step."""
        half_life = min(self.images, step * batch_size * self.rampup)
        return 0.5 ** (batch_size / half_life) if half_life > 0 else 0.0


@settings
class DenoisePhase(BasePhase):
    """A part of the training with its own optimizer and schedules."""

    optimizer: Optimizer = field(
        default_factory=lambda: Optimizer(opt="adam", lr=1e-3, weight_decay=0.0, betas=(0.9, 0.999))
    )
    """With its rate."""
    schedule: AnySchedule = field(default_factory=lambda: LinearWarmup(until=0.05))
    """Factor of the rate over the phase; Karras et al. rise for 10 of 200 million images."""
    ema: HalfLife | None = field(default_factory=HalfLife)
    """A moving average of the weights, which is then what is saved; null: none."""
    augmentation: AugmentationPipe | None = None
    """Random changes of the training images, which the network gets as labels; null: none."""
    clip_norm: Positive | None = None
    """Largest norm of the gradient."""
    accumulate: Count = 1
    """Parts that a batch is differentiated in."""

    def __post_init__(self) -> None:
        if self.accumulate > self.batch_size:
            raise ValueError(f"accumulate: a batch of {self.batch_size} has no {self.accumulate} parts")


@settings
class DenoiseRecipe(BaseRecipe):
    """Everything that training a denoiser depends on; settings of phases may be given at the top level."""

    phases: tuple[DenoisePhase, ...]
    """Parts of the training, one after the other; the settings of a single one may be given at the top level."""
    data: AnyDataset
    """The images: a name, or a map with settings."""
    network: AnyNetwork = DdpmPlusPlus()
    """What is trained."""
    noise: NoiseLevels = field(default_factory=NoiseLevels)
    """Which noise is added to the images."""
    sigma_data: Positive = 0.5
    """Standard deviation of the images in [-1, 1]."""
    task: AnyTask = field(default_factory=lambda: build("task", TASK), kw_only=True)
    """What is trained."""

    def __post_init__(self) -> None:
        BaseRecipe.__post_init__(self)
        if self.checkpoints.select == "best":
            raise ValueError("checkpoints.select: a denoiser is not validated; the last weights are the result")

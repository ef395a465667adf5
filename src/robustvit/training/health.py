"""What ruins a training, noticed while it runs: each with what to do about it."""

from dataclasses import asdict, dataclass, field
from typing import Any

from robustvit.core.errors import UserError

SKIPS_IN_A_ROW = 10
STUCK_AFTER = 0.2
"""Share of the training after which the accuracy must have left chance."""
STUCK_EPOCHS = 3
"""A shorter run is a trial, not a training."""
FALL = 0.75
"""Robust accuracy on the hold-out below this share of its best, while the training's own rises, is overfitting."""


@dataclass
class Health:
    """Watches steps, epochs and validations of one phase; `told` keeps each warning to one."""

    num_classes: int
    skipped: int = 0
    skipped_in_a_row: int = 0
    hits: float = 0.0
    images: int = 0
    best: float = 0.0
    best_epoch: int = 0
    training_at_best: float = 0.0
    told: list[str] = field(default_factory=list)

    def state(self) -> dict[str, Any]:
        return asdict(self)

    def see_step(self, finite: bool, hits: float, images: int) -> None:
        """A step that moved the weights, or one that was skipped."""
        if finite:
            self.skipped_in_a_row = 0
            self.hits, self.images = self.hits + hits, self.images + images
            return
        self.skipped, self.skipped_in_a_row = self.skipped + 1, self.skipped_in_a_row + 1
        if self.skipped_in_a_row >= SKIPS_IN_A_ROW:
            raise UserError(
                f"{SKIPS_IN_A_ROW} steps in a row gave a loss or gradient that isn't finite, and the weights stand "
                "still; train anew (another --run folder) with a smaller optimizer.lr, a longer warm-up or clip_norm=1"
            )

    def end_epoch(self, epoch: int, progress: float, held: float | None) -> dict[str, str]:
        """Warnings by name; `held` is the robust accuracy on the hold-out, where it was measured."""
        training = self.hits / max(1, self.images)
        self.hits, self.images = 0.0, 0
        found = {}
        if epoch >= STUCK_EPOCHS and progress >= STUCK_AFTER and training < 1.5 / self.num_classes:
            found["stuck-at-chance"] = (
                f"after {epoch} epochs the accuracy on the training images is {100 * training:.1f} %, hardly better "
                f"than chance among {self.num_classes} classes; try an eps warm-up (eps_schedule: {{name: "
                "linear_warmup, until: 0.2}), a smaller optimizer.lr, or weaker augmentation"
            )
        if held is not None and held > self.best:
            self.best, self.best_epoch, self.training_at_best = held, epoch, training
        elif held is not None and held < FALL * self.best and training > self.training_at_best:
            found["catastrophic-overfitting"] = (
                f"robust accuracy on the hold-out fell from {100 * self.best:.1f} % (epoch {self.best_epoch}) to "
                f"{100 * held:.1f} % while that under the training's own attack rose to {100 * training:.1f} %: the "
                "model learns to fool the attack; use 2 steps or more, a longer eps warm-up, and select: best"
            )
        new = {name: text for name, text in found.items() if name not in self.told}
        self.told += new
        return new

"""What ruins a training, noticed while it runs: each with what to do about it."""

from dataclasses import dataclass, field

from robustvit.core.errors import UserError
from robustvit.core.figures import percent
from robustvit.core.numbers import wilson_interval
from robustvit.core.result import ResultWarning

SKIPS_IN_A_ROW = 10
STUCK_AFTER = 0.2
"""Fraction of the training after which the accuracy must exceed chance."""
STUCK_EPOCHS = 3
"""A shorter run is a trial, not a training."""
FALL = 0.75
"""Robust accuracy on the hold-out below this fraction of its best, while the training's own rises, is overfitting."""
LEAK = 0.25
"""Robust accuracy on the hold-out below this fraction of the training's own, at the same eps, is label leaking."""


@dataclass
class Health:
    """Watches steps, epochs and validations of one phase; each warning is given once."""

    num_classes: int
    skipped: int = 0
    skipped_in_a_row: int = 0
    hits: float = 0.0
    images: int = 0
    attacked: bool = False
    """Since the epoch began, so that the accuracy on training images is a robust one."""
    best: float = 0.0
    best_low: float = 0.0
    """The lower end of its interval."""
    best_epoch: int = 0
    training_at_best: float = 0.0
    warned: list[str] = field(default_factory=list)

    def see_step(self, finite: bool, hits: float, images: int, attacked: bool = True) -> None:
        """A step that moved the weights, or one that was skipped."""
        self.attacked = attacked
        if finite:
            self.skipped_in_a_row = 0
            self.hits, self.images = self.hits + hits, self.images + images
            return
        self.skipped, self.skipped_in_a_row = self.skipped + 1, self.skipped_in_a_row + 1
        if self.skipped_in_a_row >= SKIPS_IN_A_ROW:
            problem = "steps in a row gave a loss or gradient that isn't finite, and the weights no longer change"
            advice = (
                "start a new run (another --run folder) with a smaller optimizer.lr, a longer warm-up or clip_norm=1"
            )
            raise UserError(f"{SKIPS_IN_A_ROW} {problem}; {advice}")

    def end_epoch(
        self, epoch: int, progress: float, held: tuple[int, int] | None, full_eps: bool = True
    ) -> list[ResultWarning]:
        """New warnings; `held`: how many of how many images held out are robust, where that was measured."""
        training = self.hits / max(1, self.images)
        self.hits, self.images = 0.0, 0
        warnings = []
        chance = 1 / self.num_classes
        if epoch >= STUCK_EPOCHS and progress >= STUCK_AFTER and training < min(1.5 * chance, chance + 0.05):
            accuracy = f"after {epoch} epochs the accuracy on the training images is {percent(training)}"
            observation = f"{accuracy}, hardly better than chance among {self.num_classes} classes"
            schedule = "{name: linear_warmup, until: 0.2}"
            advice = f"try an eps warm-up (eps_schedule: {schedule}), a smaller optimizer.lr, or weaker augmentation"
            warnings.append(ResultWarning("stuck-at-chance", observation, advice))
        if held is not None and self.attacked and (signs := self._overfitting(epoch, training, held, full_eps)):
            observation = f"{signs}: the model learns to fool the attack"
            advice = "use 2 steps or more, a longer eps warm-up, and select: best"
            warnings.append(ResultWarning("catastrophic-overfitting", observation, advice))
        new = [warning for warning in warnings if warning.name not in self.warned]
        self.warned += [warning.name for warning in new]
        return new

    def _overfitting(self, epoch: int, training: float, held: tuple[int, int], full_eps: bool) -> str:
        """What shows it, if anything: both signs must be beyond chance on so few images."""
        robust, (low, high) = held[0] / held[1], wilson_interval(*held)
        if robust > self.best:
            self.best, self.best_low, self.best_epoch, self.training_at_best = robust, low, epoch, training
        elif robust < FALL * self.best and high < self.best_low and training > self.training_at_best:
            fall = f"from {percent(self.best)} (epoch {self.best_epoch}) to {percent(robust)}"
            rise = f"that under the training's own attack rose to {percent(training)}"
            return f"robust accuracy on the hold-out fell {fall} while {rise}"
        if full_eps and high < LEAK * training:
            own = f"the training's own attack leaves {percent(training)} robust"
            return f"{own}, that on the hold-out at the same eps {percent(robust)}"
        return ""

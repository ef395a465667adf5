"""The loss at every step of one long attack, from several starts: where does it converge, and to the same value?

Figures 6, 16 and 17 of A Light Recipe to Train Robust Vision Transformers (Debenedetti et al. 2023).
"""

import numpy as np
import torch
from torch import Tensor

from robustvit.analysis.attack_losses import clean_loss, first_correct, loss_chart, starts
from robustvit.analysis.checks import check_attacking, required
from robustvit.analysis.streaming import State, accumulate
from robustvit.attacks import Search
from robustvit.attacks.ascent import PGD, AnyStepSize, Start, StepSize
from robustvit.core.component import component
from robustvit.core.figures import Table, percent
from robustvit.core.finding import Finding
from robustvit.core.numbers import Count, UnitInterval
from robustvit.core.streams import seeded_globals
from robustvit.evaluation.store import Store
from robustvit.evaluation.subject import Subject
from robustvit.threats import LpBall


@component("analysis", "loss_along")
class LossAlong:
    """The loss at every step of a long PGD with large steps, from many starts, for single images."""

    shown: Count = 8
    """Images, the first ones that the model classifies correctly; the paper shows 32."""
    steps: Count = 500
    """Of each search."""
    restarts: Count = 20
    """Starts."""
    step: AnyStepSize = StepSize(0.15, of_eps=True)
    """Size of a step, which the paper calls relatively large: that of a PGD of 10 steps."""
    start: Start = "uniform"
    """Where a search begins."""
    converged: UnitInterval = 0.99
    """Part of the rise of the loss at which a search counts as converged."""
    threat: LpBall | None = None
    """Of the attacks; null: that of the call."""

    def check(self, subject: Subject) -> None:
        check_attacking(subject, PGD(self.steps, self.step, self.start), required(self.threat, "loss_along"))

    def passes(self, subject: Subject) -> int:
        shown = min(self.shown, len(subject.indices))
        return len(subject.indices) + shown * self.restarts * (2 * self.steps + 1)

    def __call__(self, subject: Subject, store: Store) -> Finding:
        threat, chosen = required(self.threat, "loss_along"), first_correct(subject, self.shown)
        losses = np.zeros((len(chosen), self.restarts, self.steps + 1))
        state: State = {"losses": losses}

        def add(restart: int) -> int:
            for rows in torch.split(torch.arange(len(chosen)), subject.batch_size):
                losses[rows.numpy(), restart] = self._along(subject, chosen[rows], threat, restart)
            return len(chosen)

        total = self.restarts * len(chosen)
        accumulate(range(self.restarts), state, add, store, "loss along an attack", total, subject.quiet)
        return self._finding(subject, threat, chosen.tolist(), losses)

    def _along(self, subject: Subject, indices: Tensor, threat: LpBall, restart: int) -> np.ndarray:
        """(B, steps + 1); what an attack shows is the loss before each step, so that the last one takes a pass."""
        x, y = subject.batch(indices)
        losses = np.zeros((len(x), self.steps + 1))

        def observe(step: int, rows: Tensor, x_adv: Tensor, loss: Tensor, logits: Tensor) -> None:
            losses[rows.cpu().numpy(), step] = loss.double().cpu().numpy()

        search = Search(starts(subject.seed, indices, restart, str(x.device)), observe=observe)
        with seeded_globals(subject.seed, "loss along", restart, int(indices[0])):  # for models that are random
            x_adv = PGD(self.steps, self.step, self.start)(subject, x, y, threat, search)
        losses[:, -1] = clean_loss(subject, x_adv, y)
        return losses

    def _finding(self, subject: Subject, threat: LpBall, chosen: list[int], losses: np.ndarray) -> Finding:
        xs = tuple(map(float, range(self.steps + 1)))
        note = f"Mean of {self.restarts} starts; the band is from the smallest to the largest."
        reached = steps_to(losses, self.converged)  # (images, restarts)
        rows = tuple(
            (
                f"image {index}",
                f"{losses[row, :, 0].mean():.4g}",
                f"{losses[row, :, -1].mean():.4g}",
                f"{np.ptp(losses[row, :, -1]):.3g}",
                f"{int(np.median(reached[row]))}",
            )
            for row, index in enumerate(chosen)
        )
        columns = ("image", "at the start", "at the end", "largest minus smallest", "steps to converge")
        return Finding(
            "Loss along an attack",
            f"Cross-entropy at every step of PGD-{self.steps} with steps of {self.step}, {threat}, on {len(chosen)} "
            f"correctly classified images of {subject.images.title}, {self.restarts} starts each. A search has "
            f"converged where the loss has first risen by {percent(self.converged)} of its largest rise; the median "
            "of the starts is in the table.",
            tables=(Table("Loss", columns, rows),),
            charts=tuple(loss_chart(index, xs, losses[row], note, False) for row, index in enumerate(chosen)),
            arrays={"losses": losses, "steps-to-converge": reached, "index": np.array(chosen)},
        )


def steps_to(losses: np.ndarray, part: float) -> np.ndarray:
    """The first index along the last axis at which so much of the largest rise from the first value is reached."""
    first = losses[..., :1]
    rise = losses.max(-1, keepdims=True) - first
    found: np.ndarray = (losses - first >= part * rise).argmax(-1)
    return found

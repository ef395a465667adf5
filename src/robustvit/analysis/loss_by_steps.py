"""Whether more steps and other starts raise the loss further: is a long attack as strong as they come?

Figures 5, 14 and 15 of A Light Recipe to Train Robust Vision Transformers (Debenedetti et al. 2023).
"""

from typing import Annotated

import numpy as np
from pydantic import Field

from robustvit.analysis.attack_losses import attacked_loss, clean_loss, first_correct, loss_chart
from robustvit.analysis.checks import check_attacking, required
from robustvit.analysis.streaming import State, accumulate
from robustvit.attacks.ascent import PGD, AnyStepSize, Start, StepSize
from robustvit.core.component import component
from robustvit.core.figures import Table
from robustvit.core.finding import Finding
from robustvit.core.numbers import Count
from robustvit.evaluation.store import Store
from robustvit.evaluation.subject import Subject
from robustvit.threats import LpBall


@component("analysis", "loss_by_steps")
class LossBySteps:
    """The loss that PGD reaches with different numbers of steps, from many starts, for single images."""

    shown: Count = 8
    """Images, the first ones that the model classifies correctly; the paper shows 32."""
    steps: Annotated[tuple[Count, ...], Field(min_length=1)] = (1, 5, 10, 50, 100, 200, 500)
    """Of separate attacks."""
    restarts: Count = 20
    """Starts of each."""
    step: AnyStepSize = StepSize(1.5, of_eps=True, per_step=True)
    """Size of a step."""
    start: Start = "uniform"
    """Where a search begins."""
    threat: LpBall | None = None
    """Of the attacks; null: that of the call."""

    def check(self, subject: Subject) -> None:
        check_attacking(subject, PGD(max(self.steps), self.step, self.start), required(self.threat, "loss_by_steps"))

    def passes(self, subject: Subject) -> int:
        shown = min(self.shown, len(subject.indices))
        return len(subject.indices) + shown * (1 + self.restarts * sum(2 * steps + 1 for steps in self.steps))

    def __call__(self, subject: Subject, store: Store) -> Finding:
        threat, chosen = required(self.threat, "loss_by_steps"), first_correct(subject, self.shown)
        losses = np.zeros((len(chosen), self.restarts, len(self.steps)))
        state: State = {"losses": losses}

        def add(todo: tuple[int, int]) -> int:
            restart, which = todo
            attack = PGD(self.steps[which], self.step, self.start)
            for rows in np.array_split(np.arange(len(chosen)), -(-len(chosen) // subject.batch_size)):
                losses[rows, restart, which] = attacked_loss(subject, attack, chosen[rows], threat, restart)
            return self.steps[which]

        todo = [(restart, which) for restart in range(self.restarts) for which in range(len(self.steps))]
        total = self.restarts * sum(self.steps)
        accumulate(todo, state, add, store, "loss by steps", total, subject.quiet, "steps")
        return self._finding(subject, threat, chosen.tolist(), losses, clean_loss(subject, *subject.batch(chosen)))

    def _finding(
        self, subject: Subject, threat: LpBall, chosen: list[int], losses: np.ndarray, clean: np.ndarray
    ) -> Finding:
        xs = tuple(map(float, self.steps))
        note = f"Mean of {self.restarts} starts; the band is from the smallest to the largest."
        longest = int(np.argmax(self.steps))
        rows = tuple(
            (
                f"image {index}",
                f"{clean[row]:.4g}",
                *(f"{loss:.4g}" for loss in losses[row].mean(0)),
                f"{np.ptp(losses[row, :, longest]):.3g}",
            )
            for row, index in enumerate(chosen)
        )
        columns = (
            "image",
            "clean",
            *("1 step" if steps == 1 else f"{steps} steps" for steps in self.steps),
            "spread at most steps",
        )
        return Finding(
            "Loss by attack steps",
            f"Cross-entropy after separate PGD attacks of {threat}, steps of {self.step}, on {len(chosen)} correctly "
            f"classified images of {subject.images.title}, {self.restarts} starts each; the spread is the largest "
            "minus the smallest loss of the starts. If the curves end flat and close together, more steps or starts "
            "would find little more.",
            tables=(Table("Mean loss", columns, rows),),
            charts=tuple(loss_chart(index, xs, losses[row], note, True) for row, index in enumerate(chosen)),
            arrays={"losses": losses, "clean": clean, "index": np.array(chosen)},
        )

"""How far the decision boundary is from each image, how clear the decisions are, and which images are at the ends."""

import numpy as np
import torch
from torch import Tensor

from robustvit.analysis.checks import check_attacking, required
from robustvit.analysis.streaming import State, accumulate
from robustvit.attacks import Search
from robustvit.attacks.fab import FAB
from robustvit.core.component import component
from robustvit.core.figures import Chart, Line, Pictures, Table, percent
from robustvit.core.finding import Finding
from robustvit.core.numbers import Count
from robustvit.core.streams import sample_streams, seeded_globals
from robustvit.evaluation.store import Store
from robustvit.evaluation.subject import Subject
from robustvit.threats import LpBall

BINS = 20
"""Of margins, from -1 to 1."""


@component("analysis", "boundary")
class Boundary:
    """Distances to the decision boundary by FAB, margins, and the most fragile and most robust images."""

    steps: Count = 20
    """Of FAB, each with a gradient for every class."""
    shown: Count = 10
    """Images at each end."""
    threat: LpBall | None = None
    """Its norm measures distances, its eps is marked; null: that of the call."""

    def check(self, subject: Subject) -> None:
        check_attacking(subject, FAB(steps=self.steps), required(self.threat, "boundary", may_be_zero=True))

    def passes(self, subject: Subject) -> int:
        return len(subject.indices) * (1 + self.steps * (2 + subject.num_classes))

    def __call__(self, subject: Subject, store: Store) -> Finding:
        total, threat = len(subject.indices), required(self.threat, "boundary", may_be_zero=True)
        state: State = {"distance": np.zeros(total), "margin": np.zeros(total)}

        def add(rows: Tensor) -> int:
            distance, margin = self._measured(subject, subject.indices[rows], threat)
            at = rows.numpy()  # a tensor of one row would be a number
            state["distance"][at], state["margin"][at] = distance.cpu().numpy(), margin.cpu().numpy()
            return len(rows)

        steps = torch.split(torch.arange(total), subject.batch_size)
        accumulate(steps, state, add, store, "boundary", total, subject.quiet)
        return self._finding(subject, threat, state["distance"], state["margin"])

    def _measured(self, subject: Subject, indices: Tensor, threat: LpBall) -> tuple[Tensor, Tensor]:
        """0 for an image that is wrong as it is, infinity where nothing was found; and the margin of probabilities."""
        x, y = subject.batch(indices)
        with torch.no_grad():
            probabilities = subject(x).double().softmax(1)
        own = probabilities.gather(1, y[:, None]).squeeze(1)
        margin = own - probabilities.scatter(1, y[:, None], -1).amax(1)
        nearest = torch.full((len(x),), torch.inf, dtype=torch.float64, device=x.device)

        def observe(step: int, rows: Tensor, x_adv: Tensor, length: Tensor, logits: Tensor) -> None:
            found = torch.where(logits.argmax(1) != y[rows], length.double(), torch.inf)
            nearest[rows] = torch.minimum(nearest[rows], found)

        random = sample_streams(subject.seed, indices).child("boundary").to(x.device)
        with seeded_globals(subject.seed, "boundary", int(indices[0])):
            FAB(steps=self.steps)(subject, x, y, threat, Search(random, observe=observe))
        return torch.where(margin > 0, nearest, 0.0), margin

    def _finding(self, subject: Subject, threat: LpBall, distance: np.ndarray, margin: np.ndarray) -> Finding:
        found = np.isfinite(distance)
        distances = np.unique(np.concatenate([[0.0], distance[found]]))
        farther = tuple(float((distance > one).mean()) for one in distances)
        bins = np.linspace(-1, 1, BINS + 1)
        middles = tuple(((bins[:-1] + bins[1:]) / 2).tolist())
        counted = tuple((np.histogram(margin, bins)[0] / len(margin)).tolist())
        known = distance[found & (distance > 0)]
        quartiles = [f"{value:.3g}" for value in np.quantile(known, (0.25, 0.5, 0.75))] if len(known) else ["-"] * 3
        rows = (
            ("wrong as they are", percent(float((distance == 0).mean()))),
            (f"boundary within {threat}", percent(float((distance <= threat.eps).mean()))),
            ("no boundary found", percent(float((~found).mean()))),
            *(zip(("lower quartile", "median", "upper quartile"), quartiles, strict=True)),
        )
        pictures, array = self._pictures(subject, distance)
        return Finding(
            "Distance to the boundary",
            f"L{threat.norm} distances to the nearest image of another class that FAB finds in {self.steps} steps, so "
            f"that the boundary may be nearer. {len(distance)} images of {subject.images.title}. A margin is the "
            "probability of the true class minus the largest other one.",
            tables=(Table("Distances", ("images", "value"), rows),),
            charts=(
                Chart(
                    "Images whose boundary is farther", f"L{threat.norm} distance",
                    (Line("images", tuple(distances.tolist()), farther),), True, marks=((threat.eps, "eps"),),
                ),
                Chart("Margins", "margin", (Line("images", middles, counted),), True, "histogram"),
            ),
            pictures=(pictures,),
            arrays={"distance": distance, "margin": margin, "index": subject.indices.numpy(), "ends": array},
        )  # fmt: skip

    def _pictures(self, subject: Subject, distance: np.ndarray) -> tuple[Pictures, np.ndarray]:
        """The ends of the order by distance, among the images that are right; those without a boundary are last."""
        right = np.flatnonzero(distance > 0)
        order = right[np.argsort(distance[right], kind="stable")] if len(right) else np.arange(len(distance))
        count = min(self.shown, len(order))
        ends = np.stack([order[:count], order[::-1][:count]], axis=1)
        x, _ = subject.batch(subject.indices[torch.from_numpy(ends.flatten().copy())])
        array = x.float().cpu().numpy().reshape(count, 2, *x.shape[1:])
        numbers = subject.indices[torch.from_numpy(ends.copy())].tolist()
        rows = tuple(f"images {fragile} and {robust}" for fragile, robust in numbers)
        return Pictures("Most fragile and most robust images", "ends", ("most fragile", "most robust"), rows), array

"""A stage's attack on batches of images; and the judge, not the attack, decides who was fooled."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from robustvit.attacks import Search
from robustvit.attacks.fab import nearest_boundaries
from robustvit.core.generators import seeded_globals
from robustvit.core.journal import Row
from robustvit.core.streams import sample_streams
from robustvit.evaluation.evaluator import Sink
from robustvit.evaluation.ledger import CLEAN, Ledger
from robustvit.evaluation.plan import Stage
from robustvit.evaluation.subject import CountedModel, Subject
from robustvit.losses import is_fooled, margin
from robustvit.threats import LpBall

LEAD = 1e-4
"""A sample leaves the search only when the wrong class leads by this fraction of the logits' spread."""


def clean_rows(subject: Subject, batch: Tensor, ranks: int) -> list[Row]:
    """Who is right to begin with; the best `ranks` classes are kept as targets for later stages."""
    meter = _Meter(subject)
    x, y = subject.batch(batch)
    with torch.no_grad(), seeded_globals(subject.seed, CLEAN, int(batch[0])):
        logits = meter.model(x)
    finite = torch.isfinite(logits).all(1)
    predicted = torch.where(finite, logits.argmax(1), -1)
    margins = margin(logits, y)
    ranked = logits.topk(min(ranks, logits.shape[1]), dim=1).indices.tolist()
    cost = meter.per_image(len(batch))
    return [
        {
            "stage": CLEAN,
            "image": int(batch[row]),
            "outcome": "correct" if predicted[row] == y[row] else "wrong",
            "predicted": int(predicted[row]),
            "margin": _finite(margins[row]),
            **({"ranked": ranked[row]} if ranks else {}),
            **cost,
        }
        for row in range(len(batch))
    ]


@dataclass(frozen=True)
class Judge:
    """Attacks batches of a subject, and checks what comes back: inside the threat, and misclassified by the model."""

    subject: Subject
    threat: LpBall
    quantized: bool
    ledger: Ledger
    sinks: Sequence[Sink] = ()
    """Who is shown what was fooled."""

    def attack(self, stage: Stage, use: tuple[str, int], batch: Tensor) -> list[Row]:
        """A ledger row for each image; `use` names the random numbers."""
        with seeded_globals(self.subject.seed, stage.name, int(batch[0])):  # for models that are random
            return self._attack(stage, use, batch)

    def _attack(self, stage: Stage, use: tuple[str, int], batch: Tensor) -> list[Row]:
        meter = _Meter(self.subject)
        x, y = self.subject.batch(batch)
        steps = torch.zeros(len(batch), dtype=torch.int64)
        claimed = torch.zeros(len(batch), dtype=torch.bool, device=x.device)

        def done(x_adv: Tensor, logits: Tensor, rows: Tensor) -> Tensor:
            finished = self._is_done(meter.model, x, y, x_adv, logits, rows)
            claimed[rows[finished]] = True
            return finished

        def observe(step: int, rows: Tensor, x_adv: Tensor, loss: Tensor, logits: Tensor) -> None:
            steps.index_add_(0, rows.cpu(), torch.ones_like(rows, device="cpu"))

        random = sample_streams(self.subject.seed, batch).child(*use).to(x.device)
        target, nearest = self._targets(meter.model, stage, batch, x, y)
        x_adv = stage.attack(meter.model, x, y, self.threat, Search(random, target, done, observe))
        if self.quantized:
            x_adv = self.threat.quantized(x, x_adv)
        with torch.no_grad():
            logits = meter.model(x_adv)
        wrong = is_fooled(logits, y)
        fooled = wrong & self.threat.contains(x, x_adv)
        broken = ~torch.isfinite(x_adv).flatten(1).all(1) | ~torch.isfinite(logits).all(1)
        unverified = (claimed | wrong | broken) & ~fooled
        distance, margins = self.threat.distance(x, x_adv), margin(logits, y)
        cost = meter.per_image(len(batch))
        for sink in self.sinks:
            sink.offer(batch, x, x_adv, y, logits, fooled)
        return [
            {
                "stage": stage.name,
                "image": int(batch[row]),
                "outcome": "fooled" if fooled[row] else "unverified" if unverified[row] else "survived",
                "predicted": int(logits[row].argmax()) if bool(torch.isfinite(logits[row]).all()) else -1,
                "margin": _finite(margins[row]),
                "distance": _finite(distance[row]),
                "steps": int(steps[row]),
                **({"nearest": nearest[row]} if nearest is not None else {}),
                **cost,
            }
            for row in range(len(batch))
        ]

    def _is_done(
        self, model: CountedModel, x: Tensor, y: Tensor, x_adv: Tensor, logits: Tensor, rows: Tensor
    ) -> Tensor:
        """Whether these samples need no further search."""
        lead = margin(logits, y[rows])
        finished = lead > 0
        if not bool(finished.any()):  # nearly always, so at little cost
            return finished
        spread = logits.amax(1) - logits.amin(1)
        finished = torch.isfinite(logits).all(1) & (lead > LEAD * spread)
        if self.quantized and bool(finished.any()):
            candidates = rows[finished]
            with torch.no_grad():
                stored = model(self.threat.quantized(x[candidates], x_adv[finished]))
            finished[finished.clone()] = is_fooled(stored, y[candidates])
        return finished

    def _targets(
        self, model: CountedModel, stage: Stage, batch: Tensor, x: Tensor, y: Tensor
    ) -> tuple[Tensor | None, list[list[int]] | None]:
        """Each image's class to aim at; and the order by nearness, where the ledger has yet to learn it."""
        rank, nearest = stage.target_rank, None
        if rank is None:
            return None, None
        known = [self.ledger.ranked(int(i), rank, stage.target_order) for i in batch]
        if None in known:
            nearest = nearest_boundaries(model, x, y, self.threat).tolist()
            known = [classes[rank - 2] for classes in nearest]
        return torch.tensor(known, device=x.device), nearest


def _finite(value: Tensor) -> float | None:
    number = float(value)
    return float(f"{number:.7g}") if math.isfinite(number) else None


class _Meter:
    """What a batch cost, divided evenly over its images."""

    def __init__(self, subject: Subject) -> None:
        self.model = CountedModel(subject)
        self._begin = time.perf_counter()

    def per_image(self, images: int) -> dict[str, float]:
        seconds = (time.perf_counter() - self._begin) / images
        return {"seconds": round(seconds, 6), "passes": round(self.model.passes / images, 4)}

"""A stage's attack on batches of images; and the judge, not the attack, decides who was fooled."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from robustvit.attacks import Search
from robustvit.attacks.fab import nearest_boundaries
from robustvit.core.journal import Row
from robustvit.core.progress import Progress
from robustvit.core.streams import sample_streams, seeded_globals
from robustvit.evaluation.batches import batches, in_memory
from robustvit.evaluation.evaluator import Sink
from robustvit.evaluation.ledger import CLEAN, Ledger
from robustvit.evaluation.plan import Stage
from robustvit.evaluation.subject import CountedModel, Subject, json_numbers, spread_of_each
from robustvit.losses import is_correct, is_fooled, margin, predicted_classes
from robustvit.threats import LpBall

LEAD = 1e-4
"""A sample leaves the search only when the wrong class leads by this fraction of the logits' spread."""


def clean_rows(subject: Subject, ranks: int, batch: Tensor, progress: Progress | None = None) -> list[Row]:
    """Who is right to begin with; the best `ranks` classes are kept as targets for later stages."""
    model = CountedModel(subject)
    x, y = subject.batch(batch)
    with torch.no_grad(), seeded_globals(subject.seed, CLEAN, int(batch[0])):
        logits = model(x)
    outcomes = ["correct" if right else "wrong" for right in is_correct(logits, y)]
    ranked = {"ranked": ranked_classes(logits, ranks).tolist()} if ranks else {}
    return _rows(CLEAN, batch, outcomes, logits, y, model, ranked)


def ranked_classes(logits: Tensor, count: int) -> Tensor:
    """(B, count) classes by their logits; the predicted one is the first also where others have the same logit."""
    first = logits.argmax(1, keepdim=True)
    others = logits.scatter(1, first, -torch.inf)
    return torch.cat([first, others.topk(min(count, logits.shape[1]) - 1, dim=1).indices], 1)


@dataclass(frozen=True)
class Judge:
    """Attacks batches of a subject, and checks what comes back: inside the threat, and misclassified by the model."""

    subject: Subject
    threat: LpBall
    quantized: bool
    ledger: Ledger
    sinks: Sequence[Sink]
    """Who is shown what was fooled."""
    uses: Mapping[str, tuple[str, int]]
    """What names each stage's random numbers."""

    def attack(self, stage: Stage, batch: Tensor, progress: Progress | None = None) -> list[Row]:
        """A ledger row for each image."""
        model = CountedModel(self.subject)
        x, y = self.subject.batch(batch)
        steps = torch.zeros(len(batch), dtype=torch.int64)
        claimed = torch.zeros(len(batch), dtype=torch.bool, device=x.device)

        def done(x_adv: Tensor, logits: Tensor, rows: Tensor) -> Tensor:
            finished = self._is_done(model, x, y, x_adv, logits, rows)
            claimed[rows[finished]] = True
            return finished

        def observe(step: int, rows: Tensor, x_adv: Tensor, loss: Tensor, logits: Tensor) -> None:
            steps.index_add_(0, rows.cpu(), torch.ones_like(rows, device="cpu"))
            if progress is not None:
                progress.note(step=str(int(steps.max())))

        random = sample_streams(self.subject.seed, batch).child(*self.uses[stage.name]).to(x.device)
        with seeded_globals(self.subject.seed, stage.name, int(batch[0])):  # for models that are random
            target, nearest = self._targets(model, stage, batch, x, y)
            x_adv = stage.attack(model, x, y, self.threat, Search(random, target, done, observe))
            broken = ~torch.isfinite(x_adv).flatten(1).all(1)
            if self.quantized:
                x_adv = self.threat.quantized(x, x_adv)
            with torch.no_grad():
                logits = model(x_adv)
            wrong = is_fooled(logits, y)
            fooled = wrong & self.threat.contains(x, x_adv)
            for sink in self.sinks:
                sink.offer(batch, x, x_adv, y, logits, fooled)
        broken |= ~torch.isfinite(logits).all(1)
        unverified = (claimed | wrong | broken) & ~fooled
        outcomes = [
            "fooled" if falls else "unverified" if doubtful else "survived"
            for falls, doubtful in zip(fooled, unverified, strict=True)
        ]
        columns = {"distance": json_numbers(self.threat.distance(x, x_adv)), "steps": steps.tolist()}
        if nearest is not None:
            columns["nearest"] = nearest
        return _rows(stage.name, batch, outcomes, logits, y, model, columns)

    def _is_done(
        self, model: CountedModel, x: Tensor, y: Tensor, x_adv: Tensor, logits: Tensor, rows: Tensor
    ) -> Tensor:
        """Whether these samples need no further search."""
        lead = margin(logits, y[rows])
        finished = lead > 0
        if not bool(finished.any()):  # nearly always, so at little cost
            return finished
        finished = torch.isfinite(logits).all(1) & (lead > LEAD * spread_of_each(logits))
        if self.quantized and bool(finished.any()):
            candidates = rows[finished]
            stored = self.threat.quantized(x[candidates], x_adv[finished])
            with torch.no_grad():
                fools = is_fooled(model(stored), y[candidates])
            finished[finished.clone()] = fools & self.threat.contains(x[candidates], stored)
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


@dataclass(frozen=True)
class Runner:
    """Records what a process does of each stage, and shows what all processes have done of it."""

    subject: Subject
    ledger: Ledger
    mine: set[int]
    """Images of this process."""
    quiet: bool

    def run_stages(self, judge: Judge, stages: Sequence[Stage], images: Sequence[int], of_all: bool = False) -> None:
        """Stage after stage over those of my images that are robust so far."""
        for stage in stages:
            self.run(stage.name, partial(judge.attack, stage), images, of_all=of_all)
            images = [i for i in images if self.ledger.outcome(stage.name, i) != "fooled"]

    def run(
        self,
        stage: str,
        work: Callable[[Tensor, Progress], list[Row]],
        images: Sequence[int],
        title: str = "",
        of_all: bool = False,
    ) -> None:
        """The rows that are missing; `of_all`: shows how many of all images may still be robust."""
        todo = [i for i in images if i in self.mine and self.ledger.outcome(stage, i) is None]
        if not self.quiet:
            self.ledger.refresh()  # progress is that of all processes
        done = sum(self.ledger.outcome(stage, i) is not None for i in images)
        with Progress(title or stage, len(images), done, quiet=self.quiet) as progress:
            for batch in batches(todo, self.subject.batch_size):
                for _, rows in in_memory(batch, lambda part: work(part, progress), self.ledger.warn):
                    self.ledger.record(rows)
                if self.quiet:
                    continue
                self.ledger.refresh()
                outcomes = [self.ledger.outcome(stage, i) for i in images]
                robust = 100 * sum(outcome != "fooled" for outcome in outcomes) / len(self.subject.indices)
                facts = {"robust": f"{robust:.1f} % at most"} if of_all else {}
                progress.update(sum(outcome is not None for outcome in outcomes), **facts)


def _rows(
    stage: str,
    batch: Tensor,
    outcomes: list[str],
    logits: Tensor,
    y: Tensor,
    model: CountedModel,
    more: dict[str, list[Any]],
) -> list[Row]:
    """A row for each image; what the batch cost is divided evenly."""
    columns = {
        "image": batch.tolist(),
        "outcome": outcomes,
        "predicted": predicted_classes(logits).tolist(),
        "margin": json_numbers(margin(logits, y)),
        **more,
    }
    cost = model.cost_per_image(len(batch))
    images = zip(*columns.values(), strict=True)
    return [{"stage": stage, **dict(zip(columns, values, strict=True)), **cost} for values in images]

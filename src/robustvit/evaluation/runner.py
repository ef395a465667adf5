"""Stages over images: survivors are packed into full batches, and the judge, not the attack, says who fell."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from robustvit.attacks import Search, innermost
from robustvit.attacks.targets import nearest_boundaries
from robustvit.core.devices import is_out_of_memory
from robustvit.core.errors import UserError, first_line
from robustvit.core.files import Row
from robustvit.core.generators import seeded_globals
from robustvit.core.progress import Progress, say
from robustvit.core.streams import sample_streams
from robustvit.evaluation.carried import CARRIED, CARRIED_BESIDE, Carried, again
from robustvit.evaluation.ledger import Ledger
from robustvit.evaluation.sanity import chance_sign
from robustvit.evaluation.stages import Stage, Suite
from robustvit.evaluation.subject import Subject
from robustvit.losses import is_fooled, margin

CLEAN = "clean"
LEAD = 1e-4
"""A sample leaves the search only when the wrong class leads by this share of the logits' spread."""


class Sink(Protocol):
    """Whoever wants to see adversarial images: of a batch, those that are `fooled`."""

    def offer(self, batch: Tensor, x: Tensor, x_adv: Tensor, y: Tensor, logits: Tensor, fooled: Tensor) -> None: ...


def run_suite(
    subject: Subject, suite: Suite, ledger: Ledger, sinks: Sequence[Sink], carried: Carried, quiet: bool = False
) -> None:
    """Fill the ledger: what it already holds is not computed again."""
    images = subject.indices.tolist()
    every = (*suite.stages, *suite.sampled)
    ranks = [stage.target_rank or 0 for stage in every if stage.target_order == "ranked"]
    _run_clean(subject, ledger, max(ranks, default=0), quiet)
    ledger.record(carried.rows(images, ledger))
    right = [i for i in images if ledger.outcome(CLEAN, i) == "correct"]
    if suite.stages and not quiet:  # before hours of attacks; the result says it again
        for warning in chance_sign(subject, len(right)):
            say(f"warning: {warning}")
    fresh = [i for i in right if ledger.outcome(CARRIED, i) is None]
    uses = _uses(suite.stages)
    _run_stages(subject, suite.stages, uses, ledger, sinks, fresh, len(images), quiet)
    if suite.beside:
        fresh = [i for i in right if ledger.outcome(CARRIED_BESIDE, i) is None]
        _run_stages(subject, suite.beside, uses, ledger, (), fresh, len(images), quiet)
    again_stages = [replace(stage, name=again(stage)) for stage in suite.stages]
    mine = set(images)
    _run_stages(subject, again_stages, uses, ledger, (), [i for i in carried.again if i in mine], None, quiet)


def run_sample(
    subject: Subject, suite: Suite, ledger: Ledger, sinks: Sequence[Sink], sample: Sequence[int], quiet: bool = False
) -> None:
    """The stages of the sample over a process's share of it, drawing what they draw as a suite of their own."""
    mine = set(subject.indices.tolist())
    chosen = [i for i in sample if i in mine]
    _run_stages(subject, suite.sampled, _uses(suite.sampled), ledger, sinks, chosen, None, quiet)


def _run_stages(
    subject: Subject,
    stages: Sequence[Stage],
    uses: Sequence[tuple[str, int]],
    ledger: Ledger,
    sinks: Sequence[Sink],
    standing: list[int],
    total: int | None,
    quiet: bool,
) -> None:
    """Stage after stage over those still standing; `total` is what their share is told of."""
    for stage, use in zip(stages, uses, strict=True):
        fallen = sum(ledger.outcome(stage.name, i) == "fooled" for i in standing)
        open_images = [i for i in standing if ledger.outcome(stage.name, i) is None]
        with Progress(stage.name, len(standing), len(standing) - len(open_images), quiet=quiet) as progress:
            for batch in batches(open_images, subject.batch_size):
                rows = _in_memory(subject, batch, partial(_attack_part, subject, stage, use, ledger, sinks))
                ledger.record(rows)
                fallen += sum(row["outcome"] == "fooled" for row in rows)
                facts = {"robust": f"{100 * (len(standing) - fallen) / total:.1f} % at most"} if total else {}
                progress.advance(len(batch), **facts)
        standing = [i for i in standing if ledger.outcome(stage.name, i) != "fooled"]


def _attack_part(
    subject: Subject, stage: Stage, use: tuple[str, int], ledger: Ledger, sinks: Sequence[Sink], part: Tensor
) -> list[Row]:
    return attack_batch(subject, stage, use, part, ledger, sinks)


def _run_clean(subject: Subject, ledger: Ledger, ranks: int, quiet: bool) -> None:
    """Who is right to begin with; the best `ranks` classes are kept as targets for later stages."""
    images = subject.indices.tolist()
    open_images = [i for i in images if ledger.outcome(CLEAN, i) is None]
    with Progress("clean accuracy", len(images), len(images) - len(open_images), quiet=quiet) as progress:
        for batch in batches(open_images, subject.batch_size):
            ledger.record(_in_memory(subject, batch, lambda part: _clean_rows(subject, part, ranks)))
            progress.advance(len(batch))


def _clean_rows(subject: Subject, batch: Tensor, ranks: int) -> list[Row]:
    meter = _Meter(subject, len(batch))
    x, y = subject.batch(batch)
    with torch.no_grad(), seeded_globals(subject.seed, CLEAN, int(batch[0])):
        logits = subject.logits(x)
    right = torch.isfinite(logits).all(1) & (logits.argmax(1) == y)
    margins = margin(logits, y)
    ranked = logits.topk(min(ranks, logits.shape[1]), dim=1).indices.tolist()
    cost = meter.per_image()
    return [
        {
            "stage": CLEAN,
            "image": int(batch[row]),
            "outcome": "correct" if right[row] else "wrong",
            "margin": _finite(margins[row]),
            **({"ranked": ranked[row]} if ranks else {}),
            **cost,
        }
        for row in range(len(batch))
    ]


def _in_memory(subject: Subject, batch: Tensor, work: Callable[[Tensor], list[Row]]) -> list[Row]:
    """The rows of a batch; out of memory, of its halves: an image's verdict doesn't depend on its batch."""
    try:
        return work(batch)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        if len(batch) == 1:
            raise UserError(f"out of memory with a single image: {first_line(error)}") from None
    half = len(batch) // 2
    told = f"out of memory with batches of {len(batch)}: they were halved; --batch-size {half} spares the attempts"
    if told not in subject.warnings:
        subject.warnings.append(told)
    return [row for part in (batch[:half], batch[half:]) for row in _in_memory(subject, part, work)]


def attack_batch(
    subject: Subject, stage: Stage, use: tuple[str, int], batch: Tensor, ledger: Ledger, sinks: Sequence[Sink]
) -> list[Row]:
    """A stage's attack on one batch, judged: a ledger row for each image; `sinks` are shown what fell."""
    with seeded_globals(subject.seed, stage.name, int(batch[0])):  # for models that are random
        return _attack_batch(subject, stage, use, batch, ledger, sinks)


def _attack_batch(
    subject: Subject, stage: Stage, use: tuple[str, int], batch: Tensor, ledger: Ledger, sinks: Sequence[Sink]
) -> list[Row]:
    meter = _Meter(subject, len(batch))
    x, y = subject.batch(batch)
    steps = torch.zeros(len(batch), dtype=torch.int64)
    claimed = torch.zeros(len(batch), dtype=torch.bool, device=x.device)

    def done(x_adv: Tensor, logits: Tensor, rows: Tensor) -> Tensor:
        lead = margin(logits, y[rows])
        finished = lead > 0
        if not bool(finished.any()):  # nearly always, so at little cost
            return finished
        spread = logits.amax(1) - logits.amin(1)
        finished = torch.isfinite(logits).all(1) & (lead > LEAD * spread)
        if subject.quantized and bool(finished.any()):
            found = rows[finished]
            with torch.no_grad():
                stored = subject.logits(subject.threat.quantized(x[found], x_adv[finished]))
            finished[finished.clone()] = is_fooled(stored, y[found])
        claimed[rows[finished]] = True
        return finished

    def observe(step: int, rows: Tensor, x_adv: Tensor, loss: Tensor, logits: Tensor) -> None:
        steps.index_add_(0, rows.cpu(), torch.ones_like(rows, device="cpu"))

    random = sample_streams(subject.seed, batch).child(*use).to(x.device)
    target, nearest = _targets(subject, stage, batch, x, y, ledger)
    x_adv = stage.attack(subject, x, y, subject.threat, Search(random, target=target, done=done, observe=observe))
    if subject.quantized:
        x_adv = subject.threat.quantized(x, x_adv)
    with torch.no_grad():
        logits = subject.logits(x_adv)
    wrong = is_fooled(logits, y)
    fooled = wrong & subject.threat.contains(x, x_adv)
    broken = ~torch.isfinite(x_adv).flatten(1).all(1) | ~torch.isfinite(logits).all(1)
    unverified = (claimed | wrong | broken) & ~fooled
    distance, margins = subject.threat.distance(x, x_adv), margin(logits, y)
    cost = meter.per_image()
    for sink in sinks:
        sink.offer(batch, x, x_adv, y, logits, fooled)
    return [
        {
            "stage": stage.name,
            "image": int(batch[row]),
            "outcome": _outcome(bool(fooled[row]), bool(unverified[row])),
            "margin": _finite(margins[row]),
            "distance": _finite(distance[row]),
            "steps": int(steps[row]),
            **({"nearest": nearest[row]} if nearest is not None else {}),
            **cost,
        }
        for row in range(len(batch))
    ]


def _targets(
    subject: Subject, stage: Stage, batch: Tensor, x: Tensor, y: Tensor, ledger: Ledger
) -> tuple[Tensor | None, list[list[int]] | None]:
    """Each image's class to aim at; and the order by nearness, where the ledger has yet to learn it."""
    rank, nearest = stage.target_rank, None
    if rank is None:
        return None, None
    known = [ledger.ranked(int(i), rank, stage.target_order) for i in batch]
    if None in known:
        nearest = nearest_boundaries(subject.logits, x, y, subject.threat).tolist()
        known = [classes[rank - 2] for classes in nearest]
    return torch.tensor(known, device=x.device), nearest


def attack_again(subject: Subject, suite: Suite, ledger: Ledger, sink: Sink, images: Sequence[int]) -> None:
    """Show a sink images that fell when it wasn't there: the stage that each fell in repeats what it did."""
    stages, uses = (*suite.stages, *suite.sampled), (*_uses(suite.stages), *_uses(suite.sampled))
    for stage, use in zip(stages, uses, strict=True):
        fell = [i for i in images if ledger.outcome(stage.name, i) == "fooled"]
        for batch in batches(fell, subject.batch_size):
            attack_batch(subject, stage, use, batch, ledger, [sink])


def _uses(stages: Sequence[Stage]) -> list[tuple[str, int]]:
    """What names a stage's random numbers: its innermost attack and how many like it came before.

    Not the stage's name: with restarts, in another suite, or as a control, an attack draws what it draws alone.
    """
    kinds = [cast(Any, innermost(stage.attack)).name for stage in stages]
    return [(kind, kinds[:number].count(kind)) for number, kind in enumerate(kinds)]


def _outcome(fooled: bool, unverified: bool) -> str:
    return "fooled" if fooled else "unverified" if unverified else "survived"


def batches(images: list[int], size: int) -> list[Tensor]:
    return [torch.tensor(images[i : i + size]) for i in range(0, len(images), size)]


def _finite(value: Tensor) -> float | None:
    number = float(value)
    return float(f"{number:.7g}") if math.isfinite(number) else None


@dataclass
class _Meter:
    """What a batch cost, shared out evenly over its images."""

    subject: Subject
    images: int

    def __post_init__(self) -> None:
        self.begin, self.passes = time.perf_counter(), self.subject.passes

    def per_image(self) -> dict[str, float]:
        seconds = (time.perf_counter() - self.begin) / self.images
        return {"seconds": round(seconds, 6), "passes": round((self.subject.passes - self.passes) / self.images, 4)}

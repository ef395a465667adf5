"""What an evaluation will cost, from the passes that it may take and the time of one."""

import time
from dataclasses import dataclass

import torch

from robustvit.core.streams import seeded_globals
from robustvit.evaluation.evaluator import Evaluation
from robustvit.evaluation.subject import Subject

WORTH_PROCESSES = 120.0
"""Seconds of work from which further processes pay off: each of them first imports torch."""


@dataclass(frozen=True)
class Estimate:
    """Of passes an upper bound: attacks end earlier on images that they fool."""

    passes: int
    seconds: float
    """By a timed batch, and an image under each change."""


def estimate(evaluation: Evaluation, seconds: float | None = None) -> Estimate | None:
    """Of this process alone; None where the evaluation can't tell its passes. `seconds` of a pass, where known."""
    passes = evaluation.passes()
    if passes is None:
        return None
    of_a_pass = seconds_of_a_pass(evaluation.subject) if seconds is None else seconds
    return Estimate(passes, passes * of_a_pass + evaluation.seconds_of_changes())


def choose_processes(evaluation: Evaluation, cores: int) -> int:
    """As many as cores for work of minutes on a CPU, which threads inside of small models don't keep busy; else one."""
    if cores == 1 or not evaluation.subject.device.startswith("cpu"):
        return 1
    work = estimate(evaluation)
    return 1 if work is None or work.seconds < WORTH_PROCESSES else min(cores, len(evaluation.subject.indices))


def seconds_of_a_pass(subject: Subject) -> float:
    """Of one image, as part of a batch: the shorter of two, the first of which may have to allocate."""
    x, _ = subject.batch(subject.indices[: subject.batch_size])
    seconds = []
    for _ in range(2):
        begin = time.perf_counter()
        with torch.no_grad(), seeded_globals(subject.seed, "cost"):
            subject(x)
        seconds.append(time.perf_counter() - begin)
    return min(seconds) / len(x)

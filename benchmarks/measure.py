"""What all benchmarks share: ratios of times measured in turn, counted passes, the bare floor, a section of a page."""

import hashlib
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from robustvit.core.run import RunFolder, versions
from robustvit.training import recipe_from, train

ROOT = Path(__file__).parents[1]
Job = Callable[[], object]


class Counted(nn.Module):
    """A model that counts images forward and backward."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.forwards, self.backwards = model, 0, 0

    def forward(self, x: Tensor) -> Tensor:
        logits = self.model(x)
        self.forwards += len(x)
        if logits.requires_grad:
            logits.register_hook(self._count_backward)
        return logits

    def _count_backward(self, gradient: Tensor) -> None:
        self.backwards += len(gradient)


def trained(recipe: Any) -> RunFolder:
    """A run below runs/bench, trained once for each content of its recipe."""
    checked = recipe_from(recipe)
    digest = hashlib.sha256(json.dumps(checked.to_dict(), sort_keys=True).encode()).hexdigest()[:8]
    return train(checked, run=ROOT / "runs" / "bench" / f"{checked.name}-{digest}")


def seconds(job: Job) -> float:
    begin = time.perf_counter()
    job()
    return time.perf_counter() - begin


def ratio(job: Job, base: Job, rounds: int) -> float:
    """Median of job / base, the two in turn, after one round that isn't counted."""
    job(), base()
    return statistics.median(seconds(job) / seconds(base) for _ in range(rounds))


def bare_passes(model: nn.Module, x: Tensor, y: Tensor, gradients: int, forwards: int) -> None:
    """So many gradients and forward passes over the batch, and nothing else."""
    for _ in range(gradients):
        point = x.clone().requires_grad_()
        torch.autograd.grad(nn.functional.cross_entropy(model(point), y, reduction="sum"), point)
    with torch.no_grad():
        for _ in range(forwards):
            model(x)


def to_floor(attack: Callable[[nn.Module], object], model: nn.Module, x: Tensor, y: Tensor, rounds: int) -> float:
    """Time of an attack to the time of the passes it makes."""
    counted = Counted(model)
    attack(counted)
    gradients = counted.backwards // len(x)
    forwards = counted.forwards // len(x) - gradients
    return ratio(lambda: attack(model), lambda: bare_passes(model, x, y, gradients, forwards), rounds)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table with an empty line after it."""
    return [f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *rows)] + [""]


def write_page(name: str, lines: Sequence[str]) -> None:
    made = f"Made with {', '.join(f'{key} {value}' for key, value in versions().items())}, {sys.platform}."
    (ROOT / "docs" / name).write_text("\n".join([*lines, made, ""]))

"""Attacks against the bare floor (as many passes) and AutoAttack against pyautoattack, interleaved in one run.

Writes docs/benchmarks.md. A figure is a ratio of times measured side by side, the median over the rounds.
"""

import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from pyautoattack import AutoAttack
from torch import Tensor, nn

import robustvit as rv
from robustvit.attacks import APGD, FAB, PGD, Square
from robustvit.core.run import versions
from robustvit.data import Digits, as_pixels
from robustvit.training import train

THREAT = rv.LpBall("inf", 0.15)
ROUNDS = 5
ROOT = Path(__file__).parents[1]


class Counted(nn.Module):
    """A model that counts images forward and backward."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.passes = model, 0

    def forward(self, x: Tensor) -> Tensor:
        logits = self.model(x)
        self.passes += len(x)
        if logits.requires_grad:
            logits.register_hook(self._backward)
        return logits

    def _backward(self, gradient: Tensor) -> None:
        self.passes += len(gradient)


def seconds(job: Callable[[], object]) -> float:
    begin = time.perf_counter()
    job()
    return time.perf_counter() - begin


def ratio(job: Callable[[], object], base: Callable[[], object], rounds: int = ROUNDS) -> float:
    """Median of job / base, the two in turn, after one round that isn't counted."""
    job(), base()
    return statistics.median(seconds(job) / seconds(base) for _ in range(rounds))


def bare_passes(model: nn.Module, x: Tensor, y: Tensor, gradients: int, forwards: int) -> None:
    for _ in range(gradients):
        point = x.clone().requires_grad_()
        torch.autograd.grad(nn.functional.cross_entropy(model(point), y, reduction="sum"), point)
    with torch.no_grad():
        for _ in range(forwards):
            model(x)


def against_the_floor(model: nn.Module, x: Tensor, y: Tensor) -> list[tuple[str, float]]:
    random = rv.sample_streams(0, range(len(x)))
    target = (y + 1) % 10
    cases = [
        ("PGD-20", lambda: PGD(steps=20)(model, x, y, THREAT, random=random), 20, 0),
        ("APGD-CE-100", lambda: APGD()(model, x, y, THREAT, random=random), 100, 1),
        ("APGD-T-100", lambda: APGD(loss="dlr")(model, x, y, THREAT, random=random, target=target), 100, 1),
        ("FAB-T-100", lambda: FAB()(model, x, y, THREAT, random=random, target=target), 100, 100),
        ("Square-500", lambda: Square(queries=500)(model, x, y, THREAT, random=random), 0, 501),
    ]
    return [(name, ratio(job, lambda g=g, f=f: bare_passes(model, x, y, g, f))) for name, job, g, f in cases]


def against_the_reference(model: nn.Module, x: Tensor, y: Tensor, rounds: int) -> dict[str, float]:
    def theirs(subject: nn.Module) -> AutoAttack:
        judge = AutoAttack(subject, norm="Linf", eps=THREAT.eps, seed=0)
        judge.verbose = False
        return judge

    counted = Counted(model)
    _, labels = theirs(counted).run_standard_evaluation(x, y, batch_size=len(x))
    result = rv.evaluate(model, (x, y), suite="autoattack", threat=THREAT, batch_size=len(x), quiet=True)
    pairs = []
    for _ in range(rounds):
        ours = seconds(
            lambda: rv.evaluate(model, (x, y), suite="autoattack", threat=THREAT, batch_size=len(x), quiet=True)
        )
        pairs.append(ours / seconds(lambda: theirs(model).run_standard_evaluation(x, y, batch_size=len(x))))
    return {
        "time": statistics.median(pairs),
        "passes": (sum(attack.passes for attack in result.attacks) + len(x)) / counted.passes,
        "ours": result.robust_accuracy,
        "theirs": (labels == y).float().mean().item(),
    }


def main() -> None:
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    images = Digits().open("test")
    x, y = images.take(torch.arange(64))
    x = as_pixels(x)
    lines = [
        "# Benchmarks",
        "",
        "Ratios measured side by side in one run (`make bench`), one thread; lower is faster.",
        "",
        "| attack, 64 images | time / bare passes of the same number |",
        "| --- | --- |",
    ]
    models = {}
    for name in ("standard", "trades"):
        run = train(f"digits/{name}", run=ROOT / "runs" / "bench" / name)
        models[name] = rv.load_model(run.checkpoints / "last.safetensors").requires_grad_(False)
    for name, value in against_the_floor(models["trades"], x, y):
        lines.append(f"| {name} | {value:.2f} |")
        print(lines[-1], flush=True)
    lines += [
        "",
        "| AutoAttack against pyautoattack, 64 images | time | passes | robust, ours | robust, theirs |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, rounds in (("standard", 3), ("trades", 1)):
        row = against_the_reference(models[name], x, y, rounds)
        shown = [f"{row[key]:.{digits}f}" for key, digits in (("time", 2), ("passes", 2), ("ours", 3), ("theirs", 3))]
        lines.append(f"| digits/{name} | {' | '.join(shown)} |")
        print(lines[-1], flush=True)
    lines += ["", f"Made with {', '.join(f'{key} {value}' for key, value in versions().items())}, {sys.platform}.", ""]
    (ROOT / "docs" / "benchmarks.md").write_text("\n".join(lines))


if __name__ == "__main__":
    main()

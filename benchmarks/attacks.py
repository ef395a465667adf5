"""Attacks against the bare floor and the peers, AutoAttack against pyautoattack, and memory; all in one run.

Writes docs/benchmarks.md.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from measure import Counted, ratio, seconds, table, to_floor, trained, write_page
from torch import Tensor, nn

import robustvit as rv
from robustvit.attacks import APGD, FAB, FGSM, PGD, Search, Square
from robustvit.data import Digits, as_pixels
from robustvit.models import create_model

THREAT = rv.LpBall("inf", 0.15)


def floor_rows(model: nn.Module, x: Tensor, y: Tensor, fraction: float, rounds: int) -> Iterator[tuple[str, float]]:
    """Each attack with this fraction of its usual steps."""
    random = rv.sample_streams(0, range(len(x)))
    target = (y + 1) % 10
    steps = {name: max(2, round(fraction * many)) for name, many in (("pgd", 20), ("apgd", 100), ("square", 500))}
    attacks: list[tuple[str, Any, Tensor | None]] = [
        ("FGSM", FGSM(), None),
        (f"PGD-{steps['pgd']}", PGD(steps=steps["pgd"]), None),
        (f"APGD-CE-{steps['apgd']}", APGD(steps=steps["apgd"]), None),
        (f"APGD-T-{steps['apgd']}", APGD(steps=steps["apgd"], loss="dlr"), target),
        (f"FAB-T-{steps['apgd']}", FAB(steps=steps["apgd"]), target),
        (f"Square-{steps['square']}", Square(queries=steps["square"]), None),
    ]
    for name, attack, aim in attacks:
        job = lambda subject, attack=attack, aim=aim: attack(subject, x, y, THREAT, Search(random, target=aim))  # noqa: E731
        yield name, to_floor(job, model, x, y, rounds)


def peer_rows(model: nn.Module, x: Tensor, y: Tensor, rounds: int) -> Iterator[tuple[str, float]]:
    """PGD-20 from a uniform start, step eps / 4, by the other libraries and by ours."""
    import foolbox
    import torchattacks
    from art.attacks.evasion import ProjectedGradientDescent
    from art.estimators.classification import PyTorchClassifier

    random = rv.sample_streams(0, range(len(x)))
    ours = PGD(steps=20, step="eps/4")
    bound = foolbox.PyTorchModel(model, bounds=(0, 1), device="cpu")
    pgd = foolbox.attacks.LinfPGD(rel_stepsize=0.25, steps=20)
    torch_pgd = torchattacks.PGD(model, eps=THREAT.eps, alpha=THREAT.eps / 4, steps=20)
    wrapped = PyTorchClassifier(
        model, nn.CrossEntropyLoss(), input_shape=tuple(x.shape[1:]), nb_classes=10, clip_values=(0, 1)
    )
    art_pgd = ProjectedGradientDescent(
        wrapped, eps=THREAT.eps, eps_step=THREAT.eps / 4, max_iter=20, num_random_init=1, batch_size=len(x),
        verbose=False,
    )  # fmt: skip
    images, labels = x.numpy(), np.eye(10)[y.numpy()]
    peers = {
        "foolbox": lambda: pgd(bound, x, y, epsilons=THREAT.eps),
        "torchattacks": lambda: torch_pgd(x, y),
        "ART": lambda: art_pgd.generate(images, labels),
    }
    for name, theirs in peers.items():
        yield name, ratio(lambda: ours(model, x, y, THREAT, Search(random)), theirs, rounds)


def against_the_reference(model: nn.Module, x: Tensor, y: Tensor, rounds: int) -> dict[str, float]:
    from pyautoattack import AutoAttack

    def theirs(subject: nn.Module) -> AutoAttack:
        judge = AutoAttack(subject, norm="Linf", eps=THREAT.eps, seed=0)
        judge.verbose = False
        return judge

    def ours(**options: Any) -> rv.Result:
        return rv.evaluate(
            model, (x, y), suite="autoattack", threat=THREAT, batch_size=len(x), quiet=True, **options
        )  # fmt: skip

    def in_processes() -> None:
        with tempfile.TemporaryDirectory() as folder:
            ours(run=folder, processes=2)

    counted = Counted(model)
    _, labels = theirs(counted).run_standard_evaluation(x, y, batch_size=len(x))
    result = ours()
    times = []
    for _ in range(rounds):
        base = seconds(lambda: theirs(model).run_standard_evaluation(x, y, batch_size=len(x)))
        times.append((seconds(ours) / base, seconds(in_processes) / base))
    return {
        "time": statistics.median(pair[0] for pair in times),
        "processes": statistics.median(pair[1] for pair in times),
        "passes": (sum(stage.passes for stage in result.stages) + len(x)) / (counted.forwards + counted.backwards),
        "ours": result.robust_accuracy,
        "theirs": (labels == y).float().mean().item(),
    }


MEMORY = """
import resource, sys, numpy as np, robustvit as rv, torch
torch.set_num_threads(1)
model = rv.load_model(sys.argv[1])
rv.evaluate(model, sys.argv[2], suite="pgd-2", threat=rv.LpBall("inf", 0.1), run=sys.argv[3], quiet=True)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


def peak_memory(weights: str, images: int) -> float:
    """MiB at the highest, of a process that evaluates so many images from a file."""
    digits, labels = Digits().open("test").take(torch.arange(360))
    chosen = torch.arange(images) % len(labels)
    with tempfile.TemporaryDirectory() as folder:
        np.savez(f"{folder}/test.npz", image=digits[chosen].permute(0, 2, 3, 1).numpy(), label=labels[chosen].numpy())
        command = [sys.executable, "-c", MEMORY, weights, f"{folder}/test.npz", folder]
        return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    x, y = Digits().open("test").take(torch.arange(64))
    x = as_pixels(x)
    runs = {name: trained(f"digits/{name}") for name in ("standard", "trades")}
    weights = {name: str(run.checkpoints / "last.safetensors") for name, run in runs.items()}
    models = {name: rv.load_model(path).eval().requires_grad_(False) for name, path in weights.items()}
    larger = create_model("vit_tiny_patch16_224", img_size=32, patch_size=4, num_classes=10)
    larger.eval().requires_grad_(False)
    colours = torch.nn.functional.interpolate(x[:32], size=32)
    load = f"Load of the machine at the start: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores."
    lines = [
        "# Benchmarks",
        "",
        f"Ratios of times, measured alternately in one run (`make bench`) on one thread. {load}",
        "",
    ]
    lines += ["Time of an attack relative to the forward and backward passes that it makes:", ""]
    small = dict(floor_rows(models["trades"], x, y, 1.0, 5))
    large = dict(floor_rows(larger, colours, y[:32], 0.1, 7))
    lines += table(
        ["64 images, ViT of 103 k parameters", ""], [[name, f"{value:.2f}"] for name, value in small.items()]
    )
    lines += table(["32 images, ViT-Ti/4 at 32 px", ""], [[name, f"{value:.2f}"] for name, value in large.items()])
    lines += ["Time of our PGD-20 relative to other libraries, with the same images and settings:", ""]
    peers = peer_rows(models["trades"], x, y, 5)
    lines += table(["library", "time"], [[name, f"{value:.2f}"] for name, value in peers])
    print("\n".join(lines), flush=True)
    lines += ["Our AutoAttack relative to pyautoattack, 64 images:", ""]
    rows = []
    for name, rounds in (("standard", 3), ("trades", 3)):
        row = against_the_reference(models[name], x, y, rounds)
        shown = [f"{row[key]:.{places}f}" for key, places in (("time", 2), ("passes", 2), ("processes", 2))]
        rows.append([f"digits/{name}", *shown, *(f"{row[key]:.3f}" for key in ("ours", "theirs"))])
        print(rows[-1], flush=True)
    head = ["model", "time", "passes", "time, 2 processes", "robust, ours", "robust, theirs"]
    lines += table(head, rows)
    lines += ["Peak memory of a process that evaluates images from a file (`pgd-2`):", ""]
    counts = (1_000, 10_000)
    lines += table(
        ["images", "MiB"], [[f"{count:,}", f"{peak_memory(weights['standard'], count):.0f}"] for count in counts]
    )
    write_page("benchmarks.md", lines)


if __name__ == "__main__":
    main()

"""Training steps against the bare floor and against the original TRADES loop, in turn in one run.

Writes docs/benchmarks-training.md.
"""

import os
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from measure import Job, ratio, table, write_page
from torch import Tensor, nn

from robustvit.core.progress import Progress
from robustvit.core.run import processor
from robustvit.core.world import World
from robustvit.data.base import as_pixels
from robustvit.models import precision
from robustvit.models.modes import attacking, in_mode, keeping_statistics, temporarily
from robustvit.objectives import adversarial
from robustvit.objectives.base import Perturbed
from robustvit.training.classify import Classify
from robustvit.training.loop import Loop
from robustvit.training.recipe import recipe_from
from robustvit.training.recorder import NullRecorder

BATCH = 64
LARGE = 256
LARGE_MODEL = {
    "name": "vit_tiny_patch16_224", "img_size": 32, "patch_size": 4, "num_classes": 10,
    "settings": {"embed_dim": 128, "depth": 6, "num_heads": 4, "class_token": False, "global_pool": "avg"},
}  # fmt: skip
EPS, STEP = 8 / 255, 2 / 255
OBJECTIVES: dict[str, tuple[dict[str, Any], int, int]] = {
    "TRADES-10": ({"name": "trades", "attack": {"steps": 10, "step": "2/255"}}, 10, 2),
    "FGSM-AT": (
        {"name": "adversarial", "attack": {"name": "fgsm", "start": "uniform+1e-5", "step": "1.5*eps"}}, 1, 1
    ),
}  # fmt: skip
"""Each with the steps of its search and the images of its loss, in batches."""


def opened(objective: dict[str, Any], folder: str, batch: int = BATCH, **changes: Any) -> Loop:
    """A training of ViT-Ti/4 at 32 px on noise."""
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (4 * batch, 32, 32, 3), dtype=np.uint8)
    np.savez(f"{folder}/train.npz", image=images, label=random.integers(0, 10, len(images)))
    recipe = {
        "name": "bench",
        "model": {"name": "vit_tiny_patch16_224", "img_size": 32, "patch_size": 4, "num_classes": 10},
        "data": {"name": "arrays", "path": f"{folder}/train.npz"},
        "augmentation": "pad_crop", "threat": {"norm": "inf", "eps": EPS}, "epochs": 1000, "batch_size": batch,
        "objective": objective, "ema": {"decay": 0.995}, "clip_norm": 1.0, **changes,
    }  # fmt: skip
    checked = recipe_from(recipe).resolved("cpu")
    return Loop(checked, Classify(checked, NullRecorder(), World()), NullRecorder())


def our_step(loop: Loop) -> Job:
    bar = Progress("", 1, quiet=True)
    return lambda: loop.step(loop.feed[loop.position.step], bar)


def floor(model: nn.Module, x: Tensor, y: Tensor, steps: int, images: int, clean: bool) -> Job:
    """The passes of a step and nothing else: the search's, then the loss's with the gradients of the weights."""

    def passes() -> None:
        if clean:
            with torch.no_grad():
                model(x)
        for _ in range(steps):
            point = x.clone().requires_grad_()
            torch.autograd.grad(F.cross_entropy(model(point), y, reduction="sum"), point)
        sum(F.cross_entropy(model(x), y) for _ in range(images)).backward()  # type: ignore[union-attr]

    return passes


def original_trades(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor, beta: float) -> Job:
    """As its authors describe it: clean logits again at every step of the search, and twice in the loss."""

    def divergence(x_adv: Tensor) -> Tensor:
        return F.kl_div(F.log_softmax(model(x_adv), 1), F.softmax(model(x), 1), reduction="sum")

    def step() -> None:
        model.eval()
        x_adv = x + 0.001 * torch.randn_like(x)
        for _ in range(10):
            x_adv.requires_grad_()
            (gradient,) = torch.autograd.grad(divergence(x_adv), x_adv)
            x_adv = x_adv.detach() + STEP * gradient.sign()
            x_adv = torch.min(torch.max(x_adv, x - EPS), x + EPS).clamp(0, 1)
        model.train()
        optimizer.zero_grad()
        (F.cross_entropy(model(x), y) + beta * divergence(x_adv) / len(x)).backward()
        optimizer.step()

    return step


@contextmanager
def not_frozen(model: object, mode: str) -> Iterator[None]:
    """A search in which parameters need gradients, which nobody takes."""
    with in_mode(model, mode), keeping_statistics(model):
        yield


def large_steps(folder: str) -> dict[str, Job]:
    """A step on LARGE images without the levers, with each of them, and with all."""
    objective = OBJECTIVES["FGSM-AT"][0]
    whole: dict[str, Any] = {"accumulate": 1, "optimizer": {"opt": "adamw", "settings": {"fused": False}}}
    cases: dict[str, tuple[dict[str, Any], bool, bool]] = {
        "whole batch, parameters with gradients in the search, AdamW by parameter": (whole, False, False),
        "parameters frozen in the search": (whole, True, False),
        "fused AdamW": ({"accumulate": 1}, False, False),
        "parts of 64 images": ({**whole, "accumulate": None}, False, False),
        "linear layers by oneDNN, where that is faster": (whole, False, True),
        "parts of 64 images, linear layers by oneDNN": ({**whole, "accumulate": None}, False, True),
        "all four, the default": ({}, True, True),
        "all four, `precision: bf16`": ({"precision": "bf16"}, True, True),
    }

    def job(changes: dict[str, Any], is_frozen: bool, is_fast: bool) -> Job:
        with temporarily([precision], "speed_up_linear", precision.speed_up_linear if is_fast else lambda model: None):
            step = our_step(opened(objective, folder, LARGE, model=LARGE_MODEL, **changes))

        def run() -> None:
            with temporarily([adversarial], "attacking", attacking if is_frozen else not_frozen):
                step()

        return run

    return {name: job(*case) for name, case in cases.items()}


def profile(folder: str) -> list[list[str]]:
    """Where the time of a step goes."""
    loop = opened(OBJECTIVES["FGSM-AT"][0], folder, LARGE, model=LARGE_MODEL)
    task, step = loop.task, our_step(loop)
    phase, batch = task.phase, loop.feed[0]
    x, y, random = as_pixels(batch.images), batch.y, task.batches.streams(0, batch.ids)
    rows = torch.arange(LARGE).chunk(phase.parts)
    threat = task.recipe.threat

    def search() -> None:
        for some in rows:
            phase.turns[0].objective.perturb(task.model, x[some], y[some], threat, random=random[some])

    def loss() -> None:
        for some in rows:
            phase.turns[0].objective.loss(task.model, x[some], Perturbed(x[some]), y[some]).total.mean().backward()

    jobs: dict[str, Job] = {
        "search": search,
        "loss and gradient": loss,
        "optimizer": task.optimizer.step,
        "average of the weights": lambda: phase.ema.update(task.average, task.model, 0.9),
        "batch and augmentation": lambda: loop.feed[0],
    }
    parts = {name: ratio(job, step, 3) for name, job in jobs.items()}
    rest = 1 - sum(parts.values())
    return [[name, f"{100 * part:.0f} %"] for name, part in {**parts, "bookkeeping and the rest": rest}.items()]


def main(rounds: int = 3) -> None:
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    x, y = torch.rand(BATCH, 3, 32, 32), torch.randint(0, 10, (BATCH,))
    rows: list[list[str]] = []
    busy = [os.getloadavg()[0]]
    with tempfile.TemporaryDirectory() as folder:
        for name, (objective, steps, images) in OBJECTIVES.items():
            loop = opened(objective, folder)
            ours = our_step(loop)
            bare = floor(loop.task.model, x, y, steps, images, clean=name.startswith("TRADES"))
            rows.append([f"{name}, relative to its forward and backward passes", f"{ratio(ours, bare, rounds):.2f}"])
            if name.startswith("TRADES"):
                theirs = original_trades(loop.task.model, loop.task.optimizer, x, y, beta=6)
                rows.append([f"{name}, relative to the original loop", f"{ratio(ours, theirs, rounds):.2f}"])
            print(rows, flush=True)
    lines = ["# Benchmarks of training", ""]
    with tempfile.TemporaryDirectory() as folder:
        jobs = large_steps(folder)
        (first, slowest), *others = jobs.items()
        large = [[first, "1"], *([name, f"{ratio(job, slowest, rounds):.2f}"] for name, job in others)]
        print(large, flush=True)
        where = profile(folder)
    busy.append(os.getloadavg()[0] - 1)
    lines += [
        f"Ratios of times, measured alternately in one run (`make bench`) on one thread of {processor()}, "
        f"{os.cpu_count()} cores; before and after, {busy[0]:.1f} and {busy[1]:.1f} other processes were busy.",
        "",
        f"A step on {BATCH} images: ViT-Ti/4 at 32 px, including batch and augmentation, search, loss, AdamW and EMA.",
        "",
    ]
    lines += table(["step", "time"], rows)
    lines += [
        f"FGSM-AT on {LARGE} images at once: a ViT of 128 dimensions and 6 blocks, patches of 4 pixels.",
        "",
    ]
    lines += [*table(["step", "time"], large), "Where the time of such a step goes, with all four:", ""]
    lines += table(["part", "of the step"], where)
    lines += [
        "Search and loss are passes through the network, so only fewer or cheaper passes save more. In bfloat16 they "
        "are cheaper on processors with AVX512-BF16 or AMX; without, they take longer, and the run says so.",
        "",
    ]
    write_page("benchmarks-training.md", lines)


if __name__ == "__main__":
    main()

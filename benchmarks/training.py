"""Training steps against the bare floor and against the original TRADES loop, in turn in one run.

Writes docs/benchmarks-training.md.
"""

import tempfile
import warnings
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from measure import Job, ratio, table, write_page
from torch import Tensor, nn

from robustvit.core.progress import Progress
from robustvit.core.world import World
from robustvit.training.classify import Classify
from robustvit.training.loop import Loop
from robustvit.training.recipe import recipe_from
from robustvit.training.recorder import NullRecorder

BATCH = 64
EPS, STEP = 8 / 255, 2 / 255
OBJECTIVES: dict[str, tuple[dict[str, Any], int, int]] = {
    "TRADES-10": ({"name": "trades", "attack": {"steps": 10, "step": "2/255"}}, 10, 2),
    "FGSM-AT": (
        {"name": "adversarial", "attack": {"name": "fgsm", "start": "uniform+1e-5", "step": "1.5*eps"}}, 1, 1
    ),
}  # fmt: skip
"""Each with the steps of its search and the images of its loss, in batches."""


def opened(objective: dict[str, Any], folder: str) -> Loop:
    """A training of ViT-Ti/4 at 32 px on noise."""
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (4 * BATCH, 32, 32, 3), dtype=np.uint8)
    np.savez(f"{folder}/train.npz", image=images, label=random.integers(0, 10, len(images)))
    recipe = {
        "name": "bench",
        "model": {"name": "vit_tiny_patch16_224", "img_size": 32, "patch_size": 4, "num_classes": 10},
        "data": {"name": "arrays", "path": f"{folder}/train.npz"},
        "augmentation": "pad_crop", "threat": {"norm": "inf", "eps": EPS}, "epochs": 1000, "batch_size": BATCH,
        "objective": objective, "ema": {"decay": 0.995}, "clip_norm": 1.0,
    }  # fmt: skip
    checked = recipe_from(recipe)
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


def main(rounds: int = 5) -> None:
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    x, y = torch.rand(BATCH, 3, 32, 32), torch.randint(0, 10, (BATCH,))
    rows: list[list[str]] = []
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
    lines = [
        "# Benchmarks of training",
        "",
        "Ratios of times, measured alternately in one run (`make bench`) on one thread.",
        "",
    ]
    lines += [
        f"A step on {BATCH} images: ViT-Ti/4 at 32 px, including batch and augmentation, search, loss, AdamW and EMA.",
        "",
    ]
    write_page("benchmarks-training.md", lines + table(["step", "time"], rows))


if __name__ == "__main__":
    main()
